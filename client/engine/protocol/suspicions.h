// Detects reducers that this worker cannot reach, reports them to rank 0 (SUSPECT), and ends the
// run if a reducer stays out of reach while open rounds need it. A lane is silent after
// Options::silence seconds without a byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/lost_reducers.h"

namespace ors {

class Suspicions {
 public:
  Suspicions(Run* run, Lanes* lanes, CurrentRoute* current_route, const Keys* keys,
             const Rounds* rounds, LostReducers* lost_reducers)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        keys_(*keys),
        rounds_(*rounds),
        lost_reducers_(*lost_reducers) {}

  void suspect(Lane* lane, const std::string& why, double now);
  void clear(Lane* lane);  // not if the lane lost its state of the run or drains
  std::optional<Failure> on_suspect(Lane* lane, std::string_view payload, double now);
  void watch_lanes(double now);
  void watch_reducers(double now);
  // This process was paused (stopped or starved) for `seconds` and sent nothing meanwhile.
  void after_pause(double seconds, double now);
  void clear_pause() { pause_ = 0; }  // a lane still has the run: the pause was survived

  uint64_t count() const { return count_; }

 private:
  void queue_suspect(Reducer* reducer, double now);
  void change_silence(Lane* lane, double silent, double now);
  bool needed(const Reducer& reducer) const;
  bool run_ended_in_pause() const;
  Failure pause_failure() const;
  std::optional<uint32_t> host_of(const Reducer& reducer) const;
  Failure lost_host(uint32_t rank, double seconds) const;
  Failure no_reducer(double now) const;
  void shift_clocks(double seconds);

  Run& run_;
  Lanes& lanes_;
  CurrentRoute& current_route_;
  const Keys& keys_;
  const Rounds& rounds_;
  LostReducers& lost_reducers_;
  uint64_t count_ = 0;
  double pause_ = 0;       // length of the last pause if lanes may count this worker as lost; or 0
  double pause_end_ = -1;  // when that pause ended
};

}  // namespace ors
