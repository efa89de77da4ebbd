// Decides that a rank is lost: the reducers can no longer reach it, or it has left (ABSENT).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/rounds.h"

namespace ors {

struct LostRank {
  uint32_t rank = 0;
  std::string reason;  // "lost", or "left"
  std::string message;
};

class LostRanks {
 public:
  LostRanks(Run* run, Lanes* lanes, const CurrentRoute* current_route, const Rounds* rounds)
      : run_(*run), lanes_(*lanes), current_route_(*current_route), rounds_(*rounds) {}

  std::optional<Failure> on_absent(Lane* lane, std::string_view payload, double now);
  // Looks for ranks that are lost, or have left while open rounds need them. Ends the run if there
  // is one, unless the run is elastic.
  void watch(double now);
  std::vector<LostRank> lost() const;  // of an elastic run: those that are not out of it yet
  bool others_have_left() const;

 private:
  void find_lost(double now);
  void note(uint32_t rank, const std::string& reason, const std::string& message);
  bool testifies(const Lane& lane) const;
  const std::string* absence_at(const Lane& lane, uint32_t rank, double now) const;
  std::optional<std::string> lost_reason(uint32_t rank, double now) const;

  Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
  const Rounds& rounds_;
  std::vector<LostRank> lost_;
};

}  // namespace ors
