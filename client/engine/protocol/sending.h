// What may be sent to a lane, and in which order (PROTOCOL.md, section 7): credit and grants.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/current_route.h"
#include "protocol/frames.h"
#include "protocol/keys.h"
#include "protocol/lanes.h"
#include "protocol/positions.h"
#include "protocol/run.h"

namespace ors {

// A chunk that is due and not copied: the thread that sends it must copy its bytes first.
struct ChunkToCopy {
  RoundRef round;
  uint32_t chunk = 0;
};

class Sending {
 public:
  Sending(const Run* run, Lanes* lanes, const CurrentRoute* current_route, const Keys* keys,
          Positions* positions)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        keys_(*keys),
        positions_(*positions) {}

  std::optional<ChunkToCopy> fill(Lane* lane, double now,
                                  OutgoingBatch* batch);  // see State::fill()
  void on_grant(Lane* lane, const Header& header);

  uint64_t unanswered_max() const { return unanswered_max_; }
  uint64_t resent() const { return resent_; }

 private:
  Share* next_share(Lane* lane, bool* on_grant);
  void send_next(Lane* lane, Share* share, bool on_grant, double now, OutgoingBatch* batch);
  void describe_waiting(Lane* lane, double now);
  Header round_header(const Round& round, uint32_t chunk, uint8_t kind) const;

  const Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
  const Keys& keys_;
  Positions& positions_;
  uint64_t unanswered_max_ = 0;
  uint64_t resent_ = 0;
};

}  // namespace ors
