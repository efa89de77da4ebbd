// Tests how a Receiver divides the bytes of one read into batches of frames.
#include "io/receiver.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "codec/crc.h"

namespace {

std::string frame(uint8_t kind, uint64_t round, const std::string& payload) {
  ors::Header h;
  h.kind = kind;
  h.round = round;
  h.length = static_cast<uint32_t>(payload.size());
  h.payload_crc = payload.empty() ? 0 : ors::crc32c(payload.data(), payload.size());
  std::string bytes(ors::kHeaderSize, '\0');
  ors::pack_header(h, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes + payload;
}

std::string result(uint64_t round, size_t size = 8) {
  return frame(ors::kResult, round, std::string(size, static_cast<char>('a' + round)));
}

// Records the batches: c is a control frame, b the start of a result, e its end, each with its
// round. Fails at the start of round `fails`, and at no other frame.
struct Sink final : ors::FrameSink {
  std::optional<ors::Failure> take(ors::IncomingBatch* frames) override {
    std::string batch;
    for (size_t i = 0; i < frames->size(); ++i) {
      ors::Incoming& f = (*frames)[i];
      const uint64_t round = f.header.round;
      if (f.event == ors::Incoming::Event::kResultBegins) {
        if (round == fails) {
          frames->resize(i);
          batches.push_back(batch);
          return ors::Failure();
        }
        targets[round].assign(f.header.length, '-');
        f.target.bytes = reinterpret_cast<uint8_t*>(targets[round].data());
      }
      batch += "cbe"[static_cast<size_t>(f.event)] + std::to_string(round);
    }
    batches.push_back(batch);
    return std::nullopt;
  }

  uint64_t fails = ~uint64_t{0};
  std::vector<std::string> batches;
  std::map<uint64_t, std::string> targets;  // by round
};

struct Reader {
  std::optional<ors::Failure> read(const std::string& bytes) {
    struct iovec parts[2];
    const int n = receiver.prepare(parts);
    size_t at = 0;
    for (int i = 0; i < n; ++i) {
      const size_t part = std::min(parts[i].iov_len, bytes.size() - at);
      std::memcpy(parts[i].iov_base, bytes.data() + at, part);
      at += part;
    }
    CHECK(at == bytes.size());
    return receiver.received(at, &sink);
  }

  ors::Receiver receiver{"a lane"};
  Sink sink;
};

using Batches = std::vector<std::string>;

void test_small_results_are_two_batches() {
  Reader reader;
  CHECK(!reader.read(result(0) + result(1) + result(2, 0)));
  CHECK(reader.sink.batches == Batches({"b0b1b2", "e0e1e2"}));
  CHECK(reader.sink.targets[0] == "aaaaaaaa" && reader.sink.targets[1] == "bbbbbbbb");
}

void test_the_end_and_the_next_begin_are_one_batch() {
  Reader reader;
  const std::string first = result(0, 50'000);
  const std::string second = result(1, 50'000);
  CHECK(!reader.read(first.substr(0, 10'000)));
  CHECK(!reader.read(first.substr(10'000, 10'000)));
  CHECK(!reader.read(first.substr(20'000) + second.substr(0, 1'000)));
  CHECK(!reader.read(second.substr(1'000)));
  CHECK(reader.sink.batches == Batches({"b0", "e0b1", "e1"}));
  CHECK(reader.sink.targets[0] == std::string(50'000, 'a'));
  CHECK(reader.sink.targets[1] == std::string(50'000, 'b'));
}

void test_a_control_frame_waits_for_the_results_before_it() {
  Reader reader;
  const std::string control = frame(ors::kHeartbeat, 9, "");
  CHECK(!reader.read(control + control + result(0) + control + result(1)));
  CHECK(reader.sink.batches == Batches({"c9c9b0", "e0c9b1", "e1"}));
}

void test_batches_are_bounded() {
  Reader reader;
  std::string bytes;
  for (uint64_t round = 0; round < 100; ++round) bytes += result(round, 0);
  CHECK(!reader.read(bytes));
  size_t frames = 0;
  for (const std::string& batch : reader.sink.batches) {
    const auto size = std::count_if(batch.begin(), batch.end(), [](char c) { return c > '9'; });
    CHECK(size > 0 && size <= 32);
    frames += static_cast<size_t>(size);
  }
  CHECK(frames == 200);
}

// The results before a bad frame end, those after it do not.
void test_failures() {
  std::string bad = result(1);
  bad.back() ^= 1;
  Reader corrupted;
  CHECK(corrupted.read(result(0) + bad + result(2))->code == ors::ErrorCode::kCorrupted);
  CHECK(corrupted.sink.batches == Batches({"b0b1b2", "e0"}));
  Reader refused;
  refused.sink.fails = 1;
  CHECK(refused.read(result(0) + result(1) + result(2))->code == ors::ErrorCode::kInternal);
  CHECK(refused.sink.batches == Batches({"b0", "e0"}));
  Reader unknown;
  CHECK(unknown.read(result(0) + frame(99, 0, "") + result(2))->code == ors::ErrorCode::kProtocol);
  CHECK(unknown.sink.batches == Batches({"b0", "e0"}));
  Reader earliest;  // of three failures
  earliest.sink.fails = 2;
  CHECK(earliest.read(result(0) + bad + result(2) + frame(99, 0, ""))->code ==
        ors::ErrorCode::kCorrupted);
  CHECK(earliest.sink.batches == Batches({"b0b1", "e0"}));
}

void test_discard() {
  Reader reader;
  const std::string bytes = result(0, 50'000);
  CHECK(!reader.read(bytes.substr(0, 10'000)));
  reader.receiver.discard();
  reader.sink.targets[0].assign(50'000, '-');
  CHECK(!reader.read(bytes.substr(10'000)));
  CHECK(reader.sink.batches == Batches({"b0", "e0"}));
  CHECK(reader.sink.targets[0] == std::string(50'000, '-'));
}

}  // namespace

int main() {
  test_small_results_are_two_batches();
  test_the_end_and_the_next_begin_are_one_batch();
  test_a_control_frame_waits_for_the_results_before_it();
  test_batches_are_bounded();
  test_failures();
  test_discard();
}
