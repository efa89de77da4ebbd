// The records of the protocol state: keys, rounds, and what of them each lane owns. Plain data;
// the rules are in rounds.cc and flow.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "operation.h"
#include "plan.h"
#include "pool.h"

namespace ors {

struct Lane;
struct Round;
struct KeyRecord;
struct KeyLane;

struct Chunk {
  // kCopying: its submitter has not copied it yet. kHeld: its result is here.
  enum class State : uint8_t { kCopying, kReady, kSent, kHeld };

  BufferRef staging;  // kept until the chunk is stable
  uint32_t length = 0;
  uint32_t crc = 0;
  uint32_t share = 0;  // index in Round::shares
  State state = State::kCopying;
  bool on_grant = false;  // charged to the grant, not to the credit
};

// The chunks of one round that one lane owns, ascending.
struct Share {
  Lane* lane = nullptr;
  KeyLane* key_lane = nullptr;
  Round* round = nullptr;
  std::vector<uint32_t> chunks;
  size_t ready = 0;         // the first so many may be sent
  size_t sent = 0;          // of those, the first so many were
  size_t prefix = 0;        // the results of the first so many are held
  size_t freed = 0;         // the first so many are stable
  uint64_t unanswered = 0;  // cost of what was sent and is not held

  bool to_stage() const;  // its next chunk is copied when its turn comes, and was not yet
  bool all_sent() const { return sent == chunks.size(); }
  bool all_held() const { return prefix == chunks.size(); }
};

struct Round {
  Round(Descriptor descriptor_of_all, Plan cut) : descriptor(descriptor_of_all), plan(cut) {}

  const Descriptor descriptor;
  const Plan plan;
  KeyRecord* key = nullptr;
  uint64_t number = 0;
  // The caller's, until the operation is done. `source` only of a round in place, whose chunks are
  // copied when their turn comes: its memory is the target's, so nobody may change it before.
  const uint8_t* source = nullptr;
  uint8_t* target = nullptr;
  OperationRef operation;
  std::vector<Chunk> chunks;
  std::vector<Share> shares;
  int32_t priority = 0;     // the higher goes first, of rounds that wait for a lane
  uint32_t unanswered = 0;  // chunks without a result
  size_t unstable = 0;      // shares that are not all freed
  uint16_t flags = 0;
  bool over = false;  // abandoned or failed: nothing of it is sent or expected any more
};
using RoundRef = std::shared_ptr<Round>;

inline bool Share::to_stage() const {
  return round->source != nullptr && sent == ready && !all_sent();
}

// One key on one lane: the positions of PROTOCOL.md, section 8.
struct KeyLane {
  Lane* lane = nullptr;
  KeyRecord* key = nullptr;
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
};

struct KeyRecord {
  uint64_t id = 0;
  std::string name;
  uint64_t next_round = 0;
  std::map<uint64_t, RoundRef> rounds;  // not yet stable
  std::vector<std::unique_ptr<KeyLane>> lanes;
  double idle_since = 0;
};

}  // namespace ors
