// Rounds from submission to stability: their chunks are shared out among lanes, settled, and freed
// when the round is stable.
//
// Law: a contribution's staging copy is kept until its chunk is stable, whatever became of the
// caller's operation, unless its round is abandoned.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/digest.h"
#include "protocol/keys.h"
#include "protocol/lanes.h"
#include "protocol/positions.h"
#include "protocol/round.h"
#include "protocol/routing.h"
#include "protocol/run.h"
#include "protocol/submission.h"

namespace ors {

class Rounds {
 public:
  using Finished = std::function<void(const OperationRef&)>;

  Rounds(Run* run, Lanes* lanes, Routing* routing, Keys* keys, Positions* positions)
      : run_(*run), lanes_(*lanes), routing_(*routing), keys_(*keys), positions_(*positions) {}

  // Throws std::bad_alloc: then nothing was opened.
  std::optional<Failure> open(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent.
  void ready(const RoundRef& round, uint32_t chunk, Staged staged);
  void settle(Round* round, uint32_t chunk);
  void finish(Round* round, std::optional<Failure> failure);
  void abandon(const RoundRef& round, const Failure& failure, double now);
  void tell_abandoned(const Round& round, Lane* lane, uint32_t home, double now);
  void advance_stable(KeyLane* key_lane, uint64_t stable);
  void fail_all(const Failure& cause);

  KeyLane* find_stream(const KeyRecord& record, const Lane* lane, uint32_t home) const;
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
  const std::optional<Failure>& mismatch() const { return mismatch_; }  // of the ranks' digests

  Finished on_finished;  // told of every operation that ends

 private:
  void share_out(const RoundRef& round);
  void take_back(const Round& round);
  void trace(const Round& round, const std::optional<Failure>& failure);
  void retire(Round* round);
  void digest_round(const Round& round, bool well);

  Run& run_;
  Lanes& lanes_;
  Routing& routing_;
  Keys& keys_;
  Positions& positions_;
  double last_used_ = 0;
  size_t open_rounds_ = 0;  // operations that are not finished
  size_t live_rounds_ = 0;  // not stable everywhere
  uint64_t submitted_ = 0;
  uint64_t nonfinite_ = 0;  // rounds with NaN or Inf in them
  bool traced_ = false;
  std::vector<RoundTrace> traces_;
  Digests digests_;
  std::optional<Failure> mismatch_;
};

}  // namespace ors
