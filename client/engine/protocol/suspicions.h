// Reducers that this worker cannot reach: from the silence of a lane to the end of the run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/route_maker.h"

namespace ors {

class Suspicions {
 public:
  Suspicions(Run* run, Lanes* lanes, Routing* routing, const Keys* keys, const Rounds* rounds,
             RouteMaker* route_maker)
      : run_(*run),
        lanes_(*lanes),
        routing_(*routing),
        keys_(*keys),
        rounds_(*rounds),
        route_maker_(*route_maker) {}

  void suspect(Lane* lane, const std::string& why, double now);
  void clear(Lane* lane);  // unless the lane's state is lost, or it drains
  std::optional<Failure> on_suspect(Lane* lane, std::string_view payload, double now);
  void watch_lanes(double now);
  void watch_reducers(double now);
  // This process stood still for so long, in which it sent nothing either.
  void wake_up(double seconds, double now);
  void met_again() { stood_still_ = 0; }  // the run has not ended without this worker

  std::vector<uint32_t> slots() const;  // live slots that this worker cannot reach
  uint64_t count() const { return count_; }

 private:
  void tell(Reducer* reducer, double now);
  void change_silence(Lane* lane, double silent, double now);
  bool needed(const Reducer& reducer) const;
  bool was_given_up() const;
  Failure stood_still() const;
  Failure no_reducer(double now) const;
  void shift_clocks(double seconds);

  Run& run_;
  Lanes& lanes_;
  Routing& routing_;
  const Keys& keys_;
  const Rounds& rounds_;
  RouteMaker& route_maker_;
  uint64_t count_ = 0;
  double stood_still_ = 0;  // seconds, if so long that lanes may have called this worker lost;
  double woke_at_ = -1;     // until when it did
};

}  // namespace ors
