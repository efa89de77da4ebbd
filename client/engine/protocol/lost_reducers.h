// Decides which reducers are out of the job, on rank 0 only: puts a suspected reducer out and takes
// a recovered one in, by a new route.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/failover.h"
#include "protocol/reports.h"

namespace ors {

class LostReducers {
 public:
  LostReducers(const Run* run, Lanes* lanes, CurrentRoute* current_route, Failover* failover,
               Reports* reports)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        failover_(*failover),
        reports_(*reports) {}

  void decide(double now);  // does nothing on other ranks
  bool may_put_out(uint32_t slot) const;
  // A live slot has lost the streams of another rank: they begin anew in the same place.
  bool may_begin_again(uint32_t slot) const;
  void begin_again(uint32_t slot, double now) { take_in(&current_route_.at_slot(slot), now); }
  void put_out(Reducer* reducer, const std::string& why, double now);

 private:
  bool is_new(const Reducer& reducer) const;
  bool may_take_in(const Reducer& reducer, double now) const;
  bool run_ends() const;
  void take_in(Reducer* reducer, double now);

  const Run& run_;
  Lanes& lanes_;
  CurrentRoute& current_route_;
  Failover& failover_;
  Reports& reports_;
};

}  // namespace ors
