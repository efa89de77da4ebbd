// Decides that a rank is lost: the reducers can no longer reach it, or it has left (ABSENT).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/rounds.h"

namespace ors {

class LostRanks {
 public:
  LostRanks(Run* run, Lanes* lanes, const CurrentRoute* current_route, const Rounds* rounds)
      : run_(*run), lanes_(*lanes), current_route_(*current_route), rounds_(*rounds) {}

  std::optional<Failure> on_absent(Lane* lane, std::string_view payload, double now);
  // Ends the run if a rank is lost, or has left while open rounds need it.
  void watch(double now);
  bool others_have_left() const;

 private:
  std::optional<std::string> lost_reason(uint32_t rank, double now) const;

  Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
  const Rounds& rounds_;
};

}  // namespace ors
