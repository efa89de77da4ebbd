// Owns the rounds from submission until they are stable: divides a round's chunks among the lanes
// that own them, releases their credit on an answer, and frees them when they are stable.
//
// Law: the copy of a contribution is kept until its chunk is stable, because a new owner
// may need it again. This holds even after the caller's operation has finished. It does not hold
// for abandoned rounds, whose copies are freed at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/chunk_copy.h"
#include "protocol/current_route.h"
#include "protocol/digest.h"
#include "protocol/keys.h"
#include "protocol/lanes.h"
#include "protocol/positions.h"
#include "protocol/round_records.h"
#include "protocol/run.h"
#include "protocol/submission.h"

namespace ors {

class Rounds {
 public:
  using Told = std::function<void(const OperationRef&)>;

  Rounds(Run* run, Lanes* lanes, CurrentRoute* current_route, Keys* keys, Positions* positions)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        keys_(*keys),
        positions_(*positions) {}

  // If it returns a failure or throws std::bad_alloc, no round was opened.
  std::optional<Failure> open(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent, by the returned lane. Null: they need not be sent.
  const Lane* ready(const RoundRef& round, uint32_t chunk, ChunkCopy copy);
  // The source of the operation holds this many of its elements; see Submission::filled.
  void fill(const Operation& operation, uint64_t elements);
  void fill(Round* round, uint64_t elements);
  void progress(Round* round);
  // A receiver or a copying thread uses the caller's memory, or no longer does.
  void use(Round* round) { ++round->users; }
  void let_go(Round* round);
  // Returns the chunk's charge to the lane's credit or grant.
  void settle(Round* round, uint32_t chunk);
  // Finishes the caller's operation, once, as soon as nothing uses the caller's memory. The round
  // itself stays until it is stable.
  void finish(Round* round, std::optional<Failure> failure);
  // Fails the round on this rank and sends ABANDON to all lanes.
  void abandon(const RoundRef& round, const Failure& failure, double now);
  void queue_abandon(const Round& round, Lane* lane, uint32_t home, double now);
  void advance_stable(KeyLane* key_lane, uint64_t stable);
  void fail_all(const Failure& cause);

  static KeyLane* find_stream(const KeyRecord& record, const Lane* lane, uint32_t home);
  static KeyLane* add_stream(KeyRecord* record, Lane* lane, uint32_t home);
  KeyLane* key_lane(KeyRecord* record, Lane* lane, uint32_t home, uint64_t round);
  void cut_shares(Round* round, const std::vector<uint32_t>& chunks);

  void used(double now) { last_used_ = now; }
  double last_used() const { return last_used_; }
  size_t open_rounds() const { return open_rounds_; }
  size_t live_rounds() const { return live_rounds_; }
  uint64_t nonfinite() const { return nonfinite_; }
  void trace_rounds(bool wanted);
  std::vector<RoundTrace> take_traces() { return std::exchange(traces_, {}); }

  Digests& digests() { return digests_; }
  const std::optional<Failure>& mismatch() const { return mismatch_; }  // failure if digests differ

  Told on_finished;  // called for every operation that finishes
  Told on_progress;  // and for each sign of progress; see Submission::part

 private:
  void share_out(const RoundRef& round);
  void undo_share_out(const Round& round);
  static std::vector<SumSet> sets_of(const Round& round);
  void give_back(Round* round);
  void trace(const Round& round, const std::optional<Failure>& failure);
  void retire(Round* round);
  void digest_round(const Round& round, bool well);

  Run& run_;
  Lanes& lanes_;
  CurrentRoute& current_route_;
  Keys& keys_;
  Positions& positions_;
  double last_used_ = 0;
  size_t open_rounds_ = 0;  // rounds whose operation is not finished
  size_t live_rounds_ = 0;  // rounds that are not stable
  uint64_t submitted_ = 0;
  uint64_t nonfinite_ = 0;  // rounds with NaN or Inf in them
  bool traced_ = false;
  std::vector<RoundTrace> traces_;
  Digests digests_;
  std::optional<Failure> mismatch_;
};

}  // namespace ors
