// Fuzzes the engine's parsers with the bytes of a hostile lane: `engine_fuzz COUNT FIRST
// VECTORS...`.
//
// Law: any input is either parsed or refused with an error text. No input makes the parsers
// allocate more than kMost at once or takes a second, and only the right answer proves a key. With
// sanitizers the process ends at the first error. Inputs are numbered and reproducible: COUNT
// inputs are run, starting at number FIRST.
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "codec/crc.h"
#include "codec/msgpack.h"
#include "codec/wire.h"
#include "crypto/handshake.h"
#include "io/receiver.h"
#include "protocol/messages.h"

namespace {

// A chunk plus slack. The largest map, of 4,096 items, needs less.
constexpr size_t kMost = 5u << 20;
constexpr uint64_t kShown = 1'000'000;  // inputs between two lines of output
constexpr uint64_t kBatch = 1'024;      // inputs between two checks of the clock

}  // namespace

void* operator new(size_t size) {
  CHECK(size <= kMost);
  void* memory = std::malloc(size == 0 ? 1 : size);
  CHECK(memory != nullptr);
  return memory;
}
// Not inlined: GCC 14 would warn falsely about the bounds of a vector.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

// splitmix64: cheap to seed for every input.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t limit) { return limit == 0 ? 0 : next() % limit; }
  bool one_in(size_t n) { return below(n) == 0; }
  char byte() { return static_cast<char>(next()); }

 private:
  uint64_t state_;
};

struct Seeds {
  std::vector<std::string> frames;
  std::vector<std::string> maps;  // payloads of control frames
  std::string master, job, nonce, answer;
  uint16_t lane = 0;
};

void change(Random* random, std::string* bytes) {
  const size_t at = random->below(bytes->size());
  switch (bytes->empty() ? 1 : random->below(5)) {
    case 0:
      (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random->below(8)));
      break;
    case 1:
      bytes->insert(bytes->begin() + static_cast<ptrdiff_t>(at), random->byte());
      break;
    case 2:
      bytes->erase(at, 1 + random->below(8));
      break;
    case 3:
      (*bytes)[at] = random->byte();
      break;
    default:
      bytes->append(bytes->substr(at, 1 + random->below(64)));
  }
}

std::string changed(Random* random, std::string bytes) {
  for (size_t left = random->below(4); left > 0; --left) change(random, &bytes);
  return bytes;
}

// Repairs the CRCs, and mostly the length, around corrupted contents, so that inputs get past these
// checks.
void seal(Random* random, std::string* frame) {
  if (frame->size() < ors::kHeaderSize) return;
  auto* bytes = reinterpret_cast<uint8_t*>(frame->data());
  const size_t length = frame->size() - ors::kHeaderSize;
  const bool lies = random->one_in(16);
  ors::store(bytes + 64,
             static_cast<uint32_t>(lies ? random->next() >> random->below(64) : length));
  ors::store(bytes + 72, length == 0 ? 0u : ors::crc32c(bytes + ors::kHeaderSize, length));
  ors::store(bytes + 76, ors::crc32c(bytes, 76));
}

void fuzz_map(Random* random, const Seeds& seeds) {
  const std::string bytes = changed(random, seeds.maps[random->below(seeds.maps.size())]);
  ors::Value value;
  if (ors::msgpack_decode(bytes, &value) == nullptr) {
    std::string again;
    ors::msgpack_encode(value, &again);
    CHECK(ors::msgpack_decode(again, &value) == nullptr);
  }
  ors::Pending pending;
  ors::Welcome welcome;
  ors::Failure failure;
  std::string reason;
  std::vector<ors::StalledRound> rounds;
  ors::Route route;
  ors::Suspicion suspicion;
  ors::Absence absence;
  ors::decode_pending(bytes, &pending);
  ors::decode_welcome(bytes, &welcome);
  ors::decode_error(bytes, &failure);
  ors::decode_goaway(bytes, &reason);
  ors::decode_stall(bytes, &rounds);
  ors::decode_refused(bytes, &failure);
  ors::decode_suspect(bytes, &suspicion);
  ors::decode_absent(bytes, &absence);
  if (ors::decode_route(bytes, &route).empty() && route.slots() > 0) {
    const ors::Owners owners(route);
    CHECK(owners.place(random->next(), 7).slot < route.slots());
  }
}

// Accepts all frames, and three of four results. `room` is the size of the target.
class Sink final : public ors::FrameSink {
 public:
  explicit Sink(Random* random) : random_(random), room_(ors::kMaxChunkBytes) {}

  std::optional<ors::Failure> take(ors::IncomingBatch* frames) override {
    CHECK(!frames->empty());
    for (ors::Incoming& frame : *frames) {
      using Event = ors::Incoming::Event;
      const uint32_t length = frame.header.length;
      if (frame.event == Event::kControl) CHECK(length <= ors::kMaxControlBytes);
      if (frame.event == Event::kControl) CHECK(frame.received == length);
      if (frame.event != Event::kResultBegins) continue;
      CHECK(length <= room_.size());
      if (!random_->one_in(4)) frame.target.bytes = room_.data();
    }
    return {};
  }

 private:
  Random* random_;
  std::vector<uint8_t> room_;
};

void fuzz_receiver(Random* random, const Seeds& seeds, Sink* sink) {
  std::string stream;
  for (size_t left = 1 + random->below(4); left > 0; --left) {
    std::string frame = changed(random, seeds.frames[random->below(seeds.frames.size())]);
    if (!random->one_in(8)) seal(random, &frame);
    stream += frame;
  }
  if (random->one_in(64)) stream.append(ors::kMaxControlBytes + 4'096, random->byte());
  ors::Receiver receiver("a lane");
  std::optional<ors::Failure> failure;
  for (size_t at = 0; at < stream.size() && !failure;) {
    struct iovec parts[2];
    CHECK(receiver.prepare(parts) >= 1 && parts[0].iov_len > 0);
    const size_t steps[] = {1, 79, 80, 4'096};
    const size_t part = std::min({steps[random->below(4)], parts[0].iov_len, stream.size() - at});
    std::memcpy(parts[0].iov_base, stream.data() + at, part);
    at += part;
    failure = receiver.received(part, sink);
  }
  if (failure) CHECK(!failure->message.empty());
}

void fuzz_handshake(Random* random, const Seeds& seeds, const ors::Secret& key) {
  ors::Handshake handshake(key, seeds.job, seeds.lane, seeds.nonce, "a lane");
  const std::string answer = changed(random, seeds.answer);
  bool failed = false;
  for (size_t at = 0; at < answer.size() && handshake.wanted() > 0 && !failed;) {
    const size_t part = std::min({1 + random->below(100), handshake.wanted(), answer.size() - at});
    failed = handshake.received(std::string_view(answer).substr(at, part)).has_value();
    at += part;
  }
  const bool whole = answer.substr(0, seeds.answer.size()) == seeds.answer;
  CHECK(handshake.proven() == whole);
}

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string field(const std::string& line, const std::string& name) {
  const size_t at = line.find(" " + name + "=");
  if (at == std::string::npos) return {};
  const size_t begin = at + name.size() + 2;
  return line.substr(begin, line.find(' ', begin) - begin);
}

void read_seeds(const char* path, Seeds* seeds) {
  std::ifstream file(path);
  CHECK(file.good());
  for (std::string line; std::getline(file, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (kind == "frame" || kind == "bad") {
      const std::string bytes = unhex(field(line, "hex"));
      seeds->frames.push_back(bytes);
      const bool control = bytes.size() > ors::kHeaderSize && bytes[5] < 16;
      if (kind == "frame" && control) seeds->maps.push_back(bytes.substr(ors::kHeaderSize));
    } else if (kind == "psk") {
      seeds->master = unhex(field(line, "master"));
      seeds->job = unhex(field(line, "job"));
      seeds->nonce = unhex(field(line, "worker_nonce"));
      seeds->answer = unhex(field(line, "answer"));
      seeds->lane = static_cast<uint16_t>(std::stoul(field(line, "lane")));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc > 3);
  const uint64_t count = std::stoull(argv[1]);
  const uint64_t first = std::stoull(argv[2]);
  Seeds seeds;
  for (int at = 3; at < argc; ++at) read_seeds(argv[at], &seeds);
  CHECK(!seeds.frames.empty() && !seeds.maps.empty() && !seeds.answer.empty());
  const ors::Secret key = ors::job_key(seeds.master, seeds.job);
  Random random(first);
  Sink sink(&random);
  std::clock_t begun = std::clock();
  for (uint64_t number = first; number < first + count; ++number) {
    random = Random(number);
    switch (number % 8) {
      case 0:
        fuzz_handshake(&random, seeds, key);
        break;
      case 1:
        fuzz_receiver(&random, seeds, &sink);
        break;
      default:
        fuzz_map(&random, seeds);
    }
    if (number % kBatch == 0) {
      const std::clock_t now = std::clock();
      CHECK(now - begun < CLOCKS_PER_SEC);
      begun = now;
    }
    if (number % kShown == 0) std::cout << "at input " << number << std::endl;
  }
  std::cout << count << " inputs from " << first << ", none broke the law\n";
}
