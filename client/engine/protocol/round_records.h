// Records of the protocol state: keys, rounds, chunks, and each lane's share of a round. Plain
// data; the rules are in rounds.cc, results.cc and sending.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/chunk_plan.h"
#include "protocol/digest.h"
#include "protocol/operation.h"
#include "protocol/pool.h"
#include "protocol/trace.h"

namespace ors {

struct Lane;
struct Round;
struct KeyRecord;
struct KeyLane;

constexpr uint32_t kNoShare = ~uint32_t{0};

// Whose contributions a result holds, and what the lane said of them.
struct Origin {
  uint32_t epoch = 0;  // the members of its view
  uint16_t flags = 0;
  uint16_t culprit = kNoRank;
};

struct Chunk {
  // State of sending to the present owner. kCopying: not yet copied.
  enum class State : uint8_t { kCopying, kReady, kSent };
  enum class Charge : uint8_t { kNone, kCredit, kGrant };

  // The contribution, kept until the chunk is stable. In an elastic run, the result takes its
  // place: `origin` is then set, and the result is sent where the contribution would be.
  BufferRef copy;
  std::optional<Origin> origin;
  uint32_t length = 0;
  uint32_t crc = 0;
  uint32_t share = 0;  // index in Round::shares; kNoShare: stable before its stream moved
  State state = State::kCopying;
  Charge charge = Charge::kNone;  // account charged until the answer
  bool held = false;              // this rank has the result, from any owner
  bool asked = false;             // sent in the present stream, so its owner may answer
  bool sent_before = false;       // to any owner
  bool arriving = false;          // a receiver writes its result
};

// The chunks of one round and one home slot that one lane owns, ascending.
struct Share {
  Lane* lane = nullptr;
  KeyLane* key_lane = nullptr;
  Round* round = nullptr;
  uint32_t home = 0;
  std::vector<uint32_t> chunks;
  size_t sent = 0;          // chunks[sent] is the next to send
  size_t prefix = 0;        // results of chunks[0 .. prefix) are held
  size_t freed = 0;         // chunks[0 .. freed) are stable
  uint64_t unanswered = 0;  // cost of the charged chunks

  Chunk& chunk(size_t index) const;
  bool ready() const;            // the next chunk may be sent
  bool to_copy() const;          // its sender must copy the next chunk first
  bool next_is_charged() const;  // the next chunk is a retransmit, charged already
  bool all_sent() const { return sent == chunks.size(); }
  bool all_held() const { return prefix == chunks.size(); }
  bool all_freed() const { return freed == chunks.size(); }
  void advance();  // moves `sent` and `prefix` over chunks that are sent or held
};

struct Round {
  Round(Descriptor descriptor_of_all, ChunkPlan cut) : descriptor(descriptor_of_all), plan(cut) {}

  const Descriptor descriptor;
  const ChunkPlan plan;
  KeyRecord* key = nullptr;
  uint64_t key_id = 0;  // for threads that copy: `key` is gone after a failure
  uint64_t number = 0;
  bool stochastic = false;  // the rounding to blocks
  // The caller's memory; valid until the operation is done. `source` is set only if it is lent or
  // is the target (an in-place all-reduce), and there is no residual. Then a chunk is copied just
  // before it is sent.
  // Elements of `source` from `filled` on are not there yet.
  // `users`: how many threads receive into, copy from or watch this memory now.
  const uint8_t* source = nullptr;
  uint8_t* target = nullptr;
  uint32_t users = 0;
  uint64_t filled = ~uint64_t{0};
  uint64_t part = 0;  // see Submission
  std::atomic<uint32_t>* gate = nullptr;
  uint32_t first_open = 0;  // all chunks before this one are held; counted only with `part`
  OperationRef operation;
  std::vector<Chunk> chunks;
  std::vector<std::unique_ptr<Share>> shares;
  uint64_t order = 0;       // number of the submission
  int32_t priority = 0;     // waiting rounds with a higher one are sent first
  uint32_t unanswered = 0;  // chunks without a result
  size_t unstable = 0;      // shares with a chunk that is not stable
  uint16_t flags = 0;
  Culprit culprit;
  Moments moments;
  uint64_t digest = 0;  // sum over the results so far, if digests are compared
  std::unique_ptr<Comparison>
      comparison;                  // set if this round compares digests; owns source and target
  bool over = false;               // abandoned or failed: its chunks are neither sent nor expected
  Failure verdict;                 // why the round was abandoned
  bool finished = false;           // the operation is done, or will be when `users` is 0
  std::optional<Failure> failure;  // of the operation, until then

  bool is_filled(uint32_t chunk) const;  // the source of the chunk is there
};
using RoundRef = std::shared_ptr<Round>;

inline bool Round::is_filled(uint32_t chunk) const {
  if (filled >= plan.count()) return true;
  const Range range = plan.range(chunk);
  return range.offset + range.elements <= filled;
}

inline Chunk& Share::chunk(size_t index) const { return round->chunks[chunks[index]]; }

inline bool Share::ready() const {
  return !all_sent() && chunk(sent).state == Chunk::State::kReady;
}

inline bool Share::next_is_charged() const {
  return !all_sent() && chunk(sent).charge != Chunk::Charge::kNone;
}

inline bool Share::to_copy() const {
  return round->source != nullptr && !all_sent() && chunk(sent).state == Chunk::State::kCopying &&
         round->is_filled(chunks[sent]);
}

inline void Share::advance() {
  while (sent < chunks.size() && chunk(sent).state == Chunk::State::kSent) ++sent;
  while (prefix < chunks.size() && chunk(prefix).held) ++prefix;
}

// One key in one stream on one lane: the positions of PROTOCOL.md, section 8.
struct KeyLane {
  KeyLane(Lane* on, KeyRecord* of, uint32_t slot) : lane(on), key(of), home(slot) {}

  Lane* const lane;
  KeyRecord* const key;
  const uint32_t home;
  uint64_t done = 0;
  uint64_t reported = 0;  // last value of `done` sent to the lane
  uint64_t stable = 0;
  uint64_t unreported_cost = 0;
  std::deque<Share*> shares;  // shares that are not stable, by round
  size_t first_unheld = 0;    // index into shares
  size_t first_unsent = 0;
  bool announced = false;  // the key's name was sent on this connection
  double used_at = 0;      // when the lane last had a reason to remember the name
  bool listed = false;     // in Lane::changed

  bool named(double now, double lasts) const {
    return announced && (first_unsent > 0 || now - used_at < lasts);
  }
  // Whether a contribution is about to be sent, which reports `done`.
  bool sends_next() const {
    if (first_unsent == shares.size()) return false;
    const Share& next = *shares[first_unsent];
    return next.ready() || next.to_copy();
  }
  void recount() {  // after `shares` changed out of order
    first_unheld = first_unsent = 0;
    while (first_unheld < shares.size() && shares[first_unheld]->all_held()) ++first_unheld;
    while (first_unsent < shares.size() && shares[first_unsent]->all_sent()) ++first_unsent;
  }
};

struct KeyRecord {
  uint64_t id = 0;
  std::string name;  // empty: the record was restored only to report its positions
  uint64_t next_round = 0;
  std::map<uint64_t, RoundRef> rounds;          // not yet stable
  std::vector<std::unique_ptr<KeyLane>> lanes;  // by home slot, then by lane
  double idle_since = 0;
};

}  // namespace ors
