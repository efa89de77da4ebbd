// Handles errors, disconnects and reconnects of lanes (PROTOCOL.md, section 11). State of the
// connection is reset. Streams continue where they were if the lane still has its state of the run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/suspicions.h"

namespace ors {

class Recovery {
 public:
  Recovery(Run* run, Lanes* lanes, const CurrentRoute* current_route, Failover* failover,
           Suspicions* suspicions, LostReducers* lost_reducers)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        failover_(*failover),
        suspicions_(*suspicions),
        lost_reducers_(*lost_reducers) {}

  void unreachable(Lane* lane, const std::string& why, double now);  // a connection attempt failed
  void closed(Lane* lane, const std::string& why, double now);
  void broken(Lane* lane, const Failure& failure, double now);  // protocol error
  std::optional<Failure> on_error(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_goaway(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> welcomed(Lane* lane, double now);  // a WELCOME after the join
  uint64_t reconnects() const { return reconnects_; }

 private:
  void resume(Lane* lane, double now);
  void on_disconnect(Lane* lane, const std::string& why, double now);
  void count_error(Lane* lane, const Failure& failure, double now);
  bool others_are_live(const Reducer& reducer) const;

  Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
  Failover& failover_;
  Suspicions& suspicions_;
  LostReducers& lost_reducers_;
  uint64_t reconnects_ = 0;
};

}  // namespace ors
