// Checks the golden vectors of tests/vectors, one file per minor version. Python checks them as
// well.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "codec/crc.h"
#include "codec/wire.h"
#include "crypto/handshake.h"
#include "io/receiver.h"
#include "protocol/chunk_owners.h"
#include "protocol/chunk_plan.h"
#include "protocol/messages.h"

namespace {

using Fields = std::map<std::string, std::string>;

const ors::ChunkTable kTable = {
    {0, 65536}, {1 << 20, 131072}, {8 << 20, 524288}, {32 << 20, 1048576}};

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const uint8_t* raw(const std::string& bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

uint64_t number(const Fields& fields, const std::string& name) {
  return std::stoull(fields.at(name));
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

void check_preface(const Fields& fields, const std::string& bytes) {
  CHECK(bytes.size() == ors::kPrefaceSize);
  ors::Preface preface;
  CHECK(ors::unpack_preface(raw(bytes), &preface) == nullptr);
  CHECK(preface.lane == number(fields, "lane"));
  CHECK(preface.flags == number(fields, "flags"));
  CHECK(preface.major == ors::kProtocolMajor && preface.minor <= ors::kProtocolMinor);
  CHECK(bytes == ors::pack_preface(preface));
}

// Checks the worker's side of the handshake; Python checks the lane's side. The proof covers the
// preface with this release's minor version, so vectors of other minor versions are for lanes only.
void check_psk(const Fields& fields) {
  const auto bytes = [&](const char* name) { return unhex(fields.at(name)); };
  if (bytes("opening")[5] != ors::kProtocolMinor) return;
  const ors::Secret key = ors::job_key(bytes("master"), bytes("job"));
  CHECK(key.bytes() == bytes("key"));
  const auto lane = static_cast<uint16_t>(number(fields, "lane"));
  const std::string answer = bytes("answer");
  ors::Handshake whole(key, bytes("job"), lane, bytes("worker_nonce"), "lane");
  CHECK(whole.opening() == bytes("opening"));
  CHECK(whole.wanted() == answer.size());
  CHECK(!whole.received(answer));
  CHECK(whole.proven() && whole.proof() == bytes("proof"));
  ors::Handshake cut(key, bytes("job"), lane, bytes("worker_nonce"), "lane");
  for (const char byte : answer) {
    CHECK(!cut.proven());
    CHECK(!cut.received({&byte, 1}));
  }
  CHECK(cut.proof() == whole.proof());
  for (size_t at = 0; at < answer.size(); ++at) {
    std::string changed = answer;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    ors::Handshake other(key, bytes("job"), lane, bytes("worker_nonce"), "lane");
    CHECK(other.received(changed));
    CHECK(!other.proven());
  }
}

void check_frame(const Fields& fields, const std::string& bytes) {
  CHECK(bytes.size() >= ors::kHeaderSize);
  ors::Header h;
  ors::ErrorCode code;
  CHECK(ors::unpack_header(raw(bytes), &h, &code) == nullptr);
  const std::map<std::string, uint64_t> got = {{"kind", h.kind},
                                               {"dtype", h.dtype},
                                               {"op", h.op},
                                               {"collective", h.collective},
                                               {"flags", h.flags},
                                               {"rank", h.rank},
                                               {"root", h.root},
                                               {"epoch", h.epoch},
                                               {"chunk", h.chunk},
                                               {"key", h.key},
                                               {"round", h.round},
                                               {"count", h.count},
                                               {"done", h.done},
                                               {"stable", h.stable},
                                               {"length", h.length},
                                               {"route", h.route},
                                               {"payload_crc", h.payload_crc}};
  for (const auto& [name, value] : got) CHECK(value == number(fields, name));
  uint8_t packed[ors::kHeaderSize];
  ors::pack_header(h, packed);
  CHECK(bytes.substr(0, ors::kHeaderSize) ==
        std::string(reinterpret_cast<char*>(packed), sizeof packed));
  CHECK(bytes.size() == ors::kHeaderSize + h.length);
  const std::string payload = bytes.substr(ors::kHeaderSize);
  CHECK(ors::crc32c(payload.data(), payload.size()) == h.payload_crc);
}

// All maps that a worker receives must decode.
void check_map(const std::string& bytes) {
  const std::string payload = bytes.substr(ors::kHeaderSize);
  ors::Pending pending;
  ors::Welcome welcome;
  ors::Failure failure;
  std::string reason;
  std::vector<ors::StalledRound> rounds;
  ors::Route route;
  ors::Suspicion suspicion;
  ors::Absence absence;
  switch (static_cast<uint8_t>(bytes[5])) {
    case ors::kPending:
      CHECK(ors::decode_pending(payload, &pending).empty());
      break;
    case ors::kWelcome:
      CHECK(ors::decode_welcome(payload, &welcome).empty());
      break;
    case ors::kError:
      CHECK(ors::decode_error(payload, &failure).empty());
      break;
    case ors::kGoaway:
      CHECK(ors::decode_goaway(payload, &reason).empty());
      break;
    case ors::kStall:
      CHECK(ors::decode_stall(payload, &rounds).empty());
      break;
    case ors::kRefused:
      CHECK(ors::decode_refused(payload, &failure).empty());
      break;
    case ors::kRoute:
      CHECK(ors::decode_route(payload, &route).empty());
      if (payload.find("lost") != std::string::npos) {  // since 1.3
        CHECK(payload == ors::encode_route(route));
      }
      break;
    case ors::kSuspect:
      CHECK(ors::decode_suspect(payload, &suspicion).empty());
      if (payload.find("restarted") != std::string::npos) {  // since 1.3
        CHECK(payload == ors::encode_suspect(suspicion));
      }
      break;
    case ors::kAbsent:
      CHECK(ors::decode_absent(payload, &absence).empty());
      break;
    case ors::kAbandon:
      CHECK(ors::decode_refused(payload, &failure).empty());
      CHECK(payload == ors::encode_abandon(failure));
      break;
    default:
      break;
  }
}

struct NoSink final : ors::FrameSink {
  std::optional<ors::Failure> take(ors::IncomingBatch*) override { return {}; }
};

// Frames fed whole and byte by byte must give the same outcome.
void check_bad(const Fields& fields, const std::string& bytes) {
  const std::map<std::string, ors::ErrorCode> codes = {{"bad_frame", ors::ErrorCode::kProtocol},
                                                       {"version", ors::ErrorCode::kVersion},
                                                       {"corrupted", ors::ErrorCode::kCorrupted}};
  for (const size_t step : {bytes.size(), size_t{1}}) {
    ors::Receiver receiver("a lane");
    NoSink sink;
    std::optional<ors::Failure> failure;
    for (size_t at = 0; at < bytes.size() && !failure;) {
      struct iovec parts[2];
      receiver.prepare(parts);
      const size_t part = std::min({step, parts[0].iov_len, bytes.size() - at});
      std::memcpy(parts[0].iov_base, bytes.data() + at, part);
      at += part;
      failure = receiver.received(part, &sink);
    }
    const uint8_t kind = static_cast<uint8_t>(bytes[5]);
    if (!failure && kind == ors::kContribution) return;  // only lanes check those
    CHECK(failure.has_value());
    const bool unexpected =
        kind == ors::kContribution && failure->code == ors::ErrorCode::kProtocol;
    CHECK(unexpected || failure->code == codes.at(fields.at("error")));
  }
}

void check_plan(const Fields& fields) {
  ors::Descriptor d;
  d.collective = static_cast<uint8_t>(number(fields, "collective"));
  d.dtype = static_cast<uint8_t>(number(fields, "dtype"));
  d.count = number(fields, "count");
  d.root = static_cast<uint16_t>(number(fields, "root"));
  const auto rank = static_cast<uint32_t>(number(fields, "rank"));
  const auto list = [&](const std::string& name) {
    std::vector<uint32_t> numbers;
    const auto found = fields.find(name);
    if (found == fields.end() || found->second.empty()) return numbers;
    for (const auto& text : split(found->second, ',')) {
      numbers.push_back(static_cast<uint32_t>(std::stoul(text)));
    }
    return numbers;
  };
  std::string why;
  const auto plan =
      ors::ChunkPlan::make(d, static_cast<uint32_t>(number(fields, "world")), kTable, &why);
  CHECK(plan.has_value());
  CHECK(plan->chunks() == number(fields, "chunks"));
  const ors::Owners owners(ors::Route::first(list("lanes")), list("weights"));
  for (const auto& item : split(fields.at("list"), ',')) {
    std::vector<uint32_t> n;
    for (const auto& text : split(item, ':')) n.push_back(static_cast<uint32_t>(std::stoul(text)));
    const uint32_t chunk = n[0];
    CHECK(plan->range(chunk).elements == n[1]);
    CHECK((ors::sends_bytes(d, *plan, chunk, rank) ? plan->contribution_bytes(chunk) : 0) == n[2]);
    CHECK((ors::gets_bytes(d, *plan, chunk, rank) ? plan->result_bytes(chunk) : 0) == n[3]);
    const ors::Place place = owners.place(number(fields, "key"), chunk);
    CHECK(place.slot == n[4] && place.lane == n[5]);
  }
}

void check_line(const std::string& line, std::map<std::string, int>* seen) {
  std::stringstream words(line);
  std::string kind;
  std::string name;
  words >> kind >> name;
  Fields fields;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  const std::string bytes = unhex(fields["hex"]);
  if (kind == "preface") check_preface(fields, bytes);
  if (kind == "key") CHECK(ors::key_id(bytes) == number(fields, "id"));
  if (kind == "crc") CHECK(ors::crc32c(bytes.data(), bytes.size()) == number(fields, "crc"));
  if (kind == "frame") {
    check_frame(fields, bytes);
    check_map(bytes);
  }
  if (kind == "bad") check_bad(fields, bytes);
  if (kind == "plan") check_plan(fields);
  if (kind == "psk") check_psk(fields);
  ++(*seen)[kind];
}

void check_file(const char* path) {
  std::ifstream file(path);
  CHECK(file.good());
  std::map<std::string, int> seen;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') check_line(line, &seen);
  }
  for (const char* kind : {"preface", "key", "crc", "frame", "bad", "plan", "psk"}) {
    CHECK(seen[kind] > 0);
  }
  std::cout << path << ": " << seen["frame"] << " frames, " << seen["bad"] << " bad ones, "
            << seen["plan"] << " plans\n";
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc > 1);
  for (int at = 1; at < argc; ++at) check_file(argv[at]);
}
