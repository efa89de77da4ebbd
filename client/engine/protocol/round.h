// The records of the protocol state: keys, rounds, and what of them each lane owns. Plain data;
// the rules are in rounds.cc and flow.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/digest.h"
#include "protocol/operation.h"
#include "protocol/plan.h"
#include "protocol/pool.h"
#include "protocol/trace.h"

namespace ors {

struct Lane;
struct Round;
struct KeyRecord;
struct KeyLane;

constexpr uint32_t kNoShare = ~uint32_t{0};

struct Chunk {
  // Towards its present owner. kCopying: its submitter has not copied it yet.
  enum class State : uint8_t { kCopying, kReady, kSent };
  enum class Charge : uint8_t { kNone, kCredit, kGrant };

  BufferRef staging;  // kept until the chunk is stable
  uint32_t length = 0;
  uint32_t crc = 0;
  uint32_t share = 0;  // index in Round::shares; kNoShare: it was stable before its stream moved
  State state = State::kCopying;
  Charge charge = Charge::kNone;  // what its cost is taken from until it is answered
  bool held = false;              // its result is here, whoever sent it
  bool asked = false;             // its owner may answer it: it was sent in the present stream
  bool sent_before = false;       // to anybody
};

// The chunks of one round and one home slot that one lane owns, ascending.
struct Share {
  Lane* lane = nullptr;
  KeyLane* key_lane = nullptr;
  Round* round = nullptr;
  uint32_t home = 0;
  std::vector<uint32_t> chunks;
  size_t sent = 0;          // the first so many need not be sent; the next one is next
  size_t prefix = 0;        // the results of the first so many are held
  size_t freed = 0;         // the first so many are stable
  uint64_t unanswered = 0;  // cost of what is charged

  Chunk& chunk(size_t index) const;
  bool ready() const;            // its next chunk may be sent
  bool to_stage() const;         // its next chunk is copied when its turn comes, and was not yet
  bool next_is_charged() const;  // it was sent before: its room is taken
  bool all_sent() const { return sent == chunks.size(); }
  bool all_held() const { return prefix == chunks.size(); }
  bool all_freed() const { return freed == chunks.size(); }
  void advance();  // `sent` and `prefix`, over what is sent and held
};

struct Round {
  Round(Descriptor descriptor_of_all, Plan cut) : descriptor(descriptor_of_all), plan(cut) {}

  const Descriptor descriptor;
  const Plan plan;
  KeyRecord* key = nullptr;
  uint64_t number = 0;
  // The caller's, until the operation is done. `source` only where it is lent, or the target itself
  // (an all-reduce in place): its chunks are copied when their turn comes.
  const uint8_t* source = nullptr;
  uint8_t* target = nullptr;
  OperationRef operation;
  std::vector<Chunk> chunks;
  std::vector<std::unique_ptr<Share>> shares;
  uint64_t order = 0;       // of submission
  int32_t priority = 0;     // the higher goes first, of rounds that wait for a lane
  uint32_t unanswered = 0;  // chunks without a result
  size_t unstable = 0;      // shares that are not all freed
  uint16_t flags = 0;
  Culprit culprit;
  Moments moments;
  uint64_t digest = 0;                     // of the results that are held, where they are compared
  std::unique_ptr<Comparison> comparison;  // of a round that compares; it owns source and target
  bool over = false;  // abandoned or failed: nothing of it is sent or expected any more
  Failure verdict;    // why, of an abandoned one
};
using RoundRef = std::shared_ptr<Round>;

inline Chunk& Share::chunk(size_t index) const { return round->chunks[chunks[index]]; }

inline bool Share::ready() const {
  return !all_sent() && chunk(sent).state == Chunk::State::kReady;
}

inline bool Share::next_is_charged() const {
  return !all_sent() && chunk(sent).charge != Chunk::Charge::kNone;
}

inline bool Share::to_stage() const {
  return round->source != nullptr && !all_sent() && chunk(sent).state == Chunk::State::kCopying;
}

inline void Share::advance() {
  while (sent < chunks.size() && chunk(sent).state == Chunk::State::kSent) ++sent;
  while (prefix < chunks.size() && chunk(prefix).held) ++prefix;
}

// One key in one stream on one lane: the positions of PROTOCOL.md, section 8.
struct KeyLane {
  Lane* lane = nullptr;
  KeyRecord* key = nullptr;
  uint32_t home = 0;
  uint64_t done = 0;
  uint64_t reported = 0;  // the done that the lane was last told
  uint64_t stable = 0;
  uint64_t unreported_cost = 0;
  std::deque<Share*> shares;  // of rounds that are not stable here, ascending
  size_t first_unheld = 0;    // index into shares
  size_t first_unsent = 0;
  bool announced = false;  // the lane has been told the name ...
  double used_at = 0;      // ... and had reason to remember it then
  bool listed = false;     // in Lane::changed

  bool named(double now, double lasts) const {
    return announced && (first_unsent > 0 || now - used_at < lasts);
  }
  void recount() {  // after shares have changed other than in order
    first_unheld = first_unsent = 0;
    while (first_unheld < shares.size() && shares[first_unheld]->all_held()) ++first_unheld;
    while (first_unsent < shares.size() && shares[first_unsent]->all_sent()) ++first_unsent;
  }
};

struct KeyRecord {
  uint64_t id = 0;
  std::string name;  // empty: it is here again for its positions alone
  uint64_t next_round = 0;
  std::map<uint64_t, RoundRef> rounds;  // not yet stable
  std::vector<std::unique_ptr<KeyLane>> lanes;
  double idle_since = 0;
};

}  // namespace ors
