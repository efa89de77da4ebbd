// A minimal lane for the engine's tests: one job, float32 sums, no limits.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "codec/crc.h"
#include "codec/wire.h"
#include "protocol/messages.h"

class TinyLane {
 public:
  TinyLane(uint32_t world, uint32_t lane, uint32_t lanes, uint32_t slot, uint32_t reducers,
           uint64_t credit)
      : world_(world),
        lane_(lane),
        lanes_(lanes),
        slot_(slot),
        reducers_(reducers),
        credit_(credit),
        in_(world),
        out_(world),
        unanswered_(world) {}

  // `rank` is the rank of the worker's HELLO; bytes are all that the worker sent after the preface.
  void take(uint32_t rank, const std::string& bytes) {
    in_[rank] += bytes;
    std::string& in = in_[rank];
    while (in.size() >= ors::kHeaderSize) {
      ors::Header h;
      ors::ErrorCode code;
      CHECK(ors::unpack_header(reinterpret_cast<const uint8_t*>(in.data()), &h, &code) == nullptr);
      if (in.size() < ors::kHeaderSize + h.length) return;
      const std::string payload = in.substr(ors::kHeaderSize, h.length);
      CHECK(ors::crc32c(payload.data(), payload.size()) == h.payload_crc);
      in.erase(0, ors::kHeaderSize + h.length);
      frame(rank, h, payload);
    }
  }

  std::string give(uint32_t rank) { return std::exchange(out_[rank], {}); }
  uint32_t byes() const { return byes_; }
  uint64_t unanswered_max() const { return unanswered_max_; }
  size_t contributions() const { return contributions_; }
  size_t duplicates() const { return duplicates_; }  // retransmitted contributions
  std::optional<uint64_t> refuse_round;              // refuse this round of every key

  // Sends a heartbeat.
  void beat() {
    ors::Header h;
    h.kind = ors::kHeartbeat;
    for (uint32_t r = 0; r < world_; ++r) send(r, h, {});
  }

  // The connection of this rank was closed. The lane keeps the rank's state.
  void disconnect(uint32_t rank) {
    in_[rank].clear();
    out_[rank].clear();
    unanswered_[rank] = 0;
    last_.clear();
  }

  void send(uint32_t rank, ors::Header h, const std::string& payload) {
    h.length = static_cast<uint32_t>(payload.size());
    h.payload_crc = payload.empty() ? 0 : ors::crc32c(payload.data(), payload.size());
    std::string frame(ors::kHeaderSize, '\0');
    ors::pack_header(h, reinterpret_cast<uint8_t*>(frame.data()));
    out_[rank] += frame + payload;
  }

 private:
  using ChunkId = std::pair<uint64_t, uint64_t>;  // key, position

  struct Chunk {
    std::map<uint32_t, std::string> parts;
    ors::Header header;
  };

  void frame(uint32_t rank, const ors::Header& h, const std::string& payload) {
    switch (h.kind) {
      case ors::kHello:
        if (hellos_ >= world_) {
          control(rank, ors::kWelcome, welcome());
        } else if (++hellos_ == world_) {
          for (uint32_t r = 0; r < world_; ++r) control(r, ors::kWelcome, welcome());
        } else {
          control(rank, ors::kPending, pending());
        }
        break;
      case ors::kContribution:
        contribution(rank, h, payload);
        break;
      case ors::kHeartbeat:
        for (size_t at = 0; at < payload.size(); at += 16) {
          const auto* pair = reinterpret_cast<const uint8_t*>(payload.data()) + at;
          report(rank, ors::load<uint64_t>(pair), ors::load<uint64_t>(pair + 8));
        }
        break;
      case ors::kBye:
        ++byes_;
        left_.push_back(ors::Value::of(rank));
        for (uint32_t r = 0; r < world_; ++r) control(r, ors::kAbsent, absent());
        break;
      default:
        break;
    }
  }

  void contribution(uint32_t rank, const ors::Header& h, const std::string& payload) {
    CHECK(h.rank == rank);
    ++contributions_;
    report(rank, h.key, h.done);
    auto& last = last_[{rank, h.key}];
    const uint64_t position = ors::position(h.round, h.chunk) + 1;
    CHECK(position > last);  // ascending
    last = position;
    Chunk& chunk = chunks_[{h.key, position - 1}];
    const bool again = chunk.parts.count(rank) > 0;
    chunk.header = h;
    const uint64_t cost = std::max<uint64_t>(payload.size(), ors::kMinChunkCost);
    unanswered_[rank] += cost;
    unanswered_max_ = std::max(unanswered_max_, unanswered_[rank]);
    chunk.parts[rank] = payload;
    duplicates_ += again ? 1 : 0;
    if (chunk.parts.size() < world_) return;
    if (refuse_round && h.round == *refuse_round) return refuse(h);
    std::string sum = chunk.parts[0];
    for (uint32_t r = 1; r < world_; ++r) {
      for (size_t at = 0; at < sum.size(); at += sizeof(float)) {
        float a;
        float b;
        std::memcpy(&a, sum.data() + at, sizeof a);
        std::memcpy(&b, chunk.parts[r].data() + at, sizeof b);
        a += b;
        std::memcpy(sum.data() + at, &a, sizeof a);
      }
    }
    for (uint32_t r = 0; r < world_; ++r) {
      unanswered_[r] -= cost;
      ors::Header result = h;
      result.kind = ors::kResult;
      result.rank = ors::kNoRank;
      result.done = 0;
      result.stable = stable(h.key);
      send(r, result, sum);
    }
    chunks_.erase({h.key, position - 1});
  }

  void refuse(const ors::Header& h) {
    std::string map;
    ors::msgpack_encode(ors::Value::of_map({{"code", ors::Value::of(5)},
                                            {"message", ors::Value::str("the ranks differ")}}),
                        &map);
    ors::Header refused;
    refused.kind = ors::kRefused;
    refused.key = h.key;
    refused.round = h.round;
    refused.chunk = slot_;
    for (uint32_t r = 0; r < world_; ++r) {
      unanswered_[r] -= std::max<uint64_t>(
          chunks_[{h.key, ors::position(h.round, h.chunk)}].parts[r].size(), ors::kMinChunkCost);
      send(r, refused, map);
    }
  }

  void report(uint32_t rank, uint64_t key, uint64_t done) {
    auto& all = done_[key];
    all.resize(world_);
    const uint64_t before = stable(key);
    CHECK(done >= all[rank]);
    all[rank] = done;
    if (stable(key) == before) return;
    std::string entry(16, '\0');
    ors::store(reinterpret_cast<uint8_t*>(entry.data()), key);
    ors::store(reinterpret_cast<uint8_t*>(entry.data()) + 8, stable(key));
    ors::Header h;
    h.kind = ors::kHeartbeat;
    h.chunk = slot_;
    for (uint32_t r = 0; r < world_; ++r) send(r, h, entry);
  }

  uint64_t stable(uint64_t key) {
    auto& all = done_[key];
    all.resize(world_);
    uint64_t least = ~uint64_t{0};
    for (const uint64_t done : all) least = std::min(least, done);
    return least;
  }

  void control(uint32_t rank, uint8_t kind, const std::string& payload) {
    ors::Header h;
    h.kind = kind;
    send(rank, h, payload);
  }

  std::string incarnation() const { return std::string(16, static_cast<char>('a' + slot_)); }

  std::string pending() const {
    std::string out;
    ors::msgpack_encode(ors::Value::of_map({{"lanes", ors::Value::of(lanes_)},
                                            {"lane", ors::Value::of(lane_)},
                                            {"incarnation", ors::Value::bin(incarnation())},
                                            {"absent_count", ors::Value::of(world_ - hellos_)}}),
                        &out);
    return out;
  }

  std::string absent() const {
    std::string out;
    ors::msgpack_encode(ors::Value::of_map({{"left", ors::Value::of_list(left_)}}), &out);
    return out;
  }

  std::string welcome() const {
    using ors::Value;
    std::string out;
    ors::msgpack_encode(
        Value::of_map(
            {{"run_id", Value::str("run")},
             {"slot", Value::of(slot_)},
             {"reducers", Value::of(reducers_)},
             {"lanes", Value::of(lanes_)},
             {"lane", Value::of(lane_)},
             {"incarnation", Value::bin(incarnation())},
             {"world_size", Value::of(world_)},
             {"epoch", Value::of(0)},
             {"route", Value::of(0)},
             {"chunk_table", Value::of_list({Value::of_list({Value::of(0), Value::of(16384)})})},
             {"credit", Value::of(credit_)},
             {"grant", Value::of(credit_)},
             {"heartbeat_ms", Value::of(50)}}),
        &out);
    return out;
  }

  const uint32_t world_;
  const uint32_t lane_;
  const uint32_t lanes_;
  const uint32_t slot_;
  const uint32_t reducers_;
  const uint64_t credit_;
  uint32_t hellos_ = 0;
  uint32_t byes_ = 0;
  size_t duplicates_ = 0;
  std::vector<ors::Value> left_;
  size_t contributions_ = 0;
  uint64_t unanswered_max_ = 0;
  std::vector<std::string> in_;
  std::vector<std::string> out_;
  std::vector<uint64_t> unanswered_;
  std::map<ChunkId, Chunk> chunks_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> last_;
  std::map<uint64_t, std::vector<uint64_t>> done_;
};
