// Handles the answers of lanes to contributions: results, refusals and stable positions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "protocol/frames.h"
#include "protocol/rounds.h"

namespace ors {

class Results {
 public:
  Results(Run* run, CurrentRoute* current_route, Keys* keys, Positions* positions, Rounds* rounds,
          Pool* pool)
      : run_(*run),
        current_route_(*current_route),
        keys_(*keys),
        positions_(*positions),
        rounds_(*rounds),
        pool_(*pool) {}

  std::optional<Failure> begins(Lane* lane, const Header& header, Target* target);
  void ends(Lane* lane, const Header& header, double now);  // after begins(), in the same order
  // The receiver has discarded the payload that is arriving: it does not use the target any more.
  void discarded(Lane* lane) { (void)let_go(&lane->receiving.front()); }
  // The receiver is gone, or reads no more of the results that have begun.
  void forget_begun(Lane* lane);
  std::optional<Failure> on_refused(Lane* lane, const Header& header, std::string_view payload,
                                    double now);
  void on_heartbeat(Lane* lane, const Header& header, const uint8_t* payload);
  uint64_t frames_dropped() const { return frames_dropped_; }

 private:
  RoundRef let_go(Lane::Receiving* result);
  std::optional<Failure> find_chunk(Lane* lane, const Header& header, RoundRef* round);
  const char* check_result(const Lane& lane, const Round& round, const Header& header) const;
  void late_result(Lane* lane, const Header& header);
  bool keeps(const Round& round) const;
  bool rereads(const Round& round);
  void digest_result(Round* round, const Header& header);

  Run& run_;
  CurrentRoute& current_route_;
  Keys& keys_;
  Positions& positions_;
  Rounds& rounds_;
  Pool& pool_;
  uint64_t frames_dropped_ = 0;
};

}  // namespace ors
