// The positions of PROTOCOL.md, section 8: what this rank holds of each stream (`done`), and how it
// tells the lanes.
#pragma once

#include "protocol/lanes.h"
#include "protocol/round.h"
#include "protocol/routing.h"
#include "protocol/run.h"

namespace ors {

class Positions {
 public:
  Positions(const Run* run, Lanes* lanes, const Routing* routing)
      : run_(*run), lanes_(*lanes), routing_(*routing) {}

  // Tells the lane the key's name, unless the lane still knows it.
  void queue_key(KeyLane* entry, double now);

  void advance_unsent(KeyLane* entry);
  void advance_done(KeyLane* entry);
  void pass(KeyLane* entry, uint64_t round);
  void mark_changed(KeyLane* entry);
  void mark_reported(KeyLane* entry);

  void queue_heartbeat(Lane* lane, double now);
  void maybe_heartbeat(Lane* lane, double now);
  void maybe_beat(Lane* lane, double now);  // where the lane has heard nothing for long

 private:
  const Run& run_;
  Lanes& lanes_;
  const Routing& routing_;
};

}  // namespace ors
