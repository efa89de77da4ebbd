// Log lines for the user: above all, stalled rounds that the lanes report (STALL).
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages.h"

namespace ors {

class Reports {
 public:
  void add(const std::vector<StalledRound>& rounds, uint32_t world_size, double now);
  void push(std::string line);
  std::vector<std::string> take();

 private:
  struct Seen {
    StalledRound round;
    double at = 0;
    uint64_t told_ms = 0;
  };

  std::string who_waits_for_whom(uint32_t world_size) const;

  std::map<std::pair<std::string, uint64_t>, Seen> seen_;
  std::deque<std::string> lines_;
  std::string last_summary_;
};

}  // namespace ors
