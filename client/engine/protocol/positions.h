// Positions (PROTOCOL.md, section 8): up to where this rank holds the results of each stream
// (`done`), and the heartbeats that report this to the lanes.
#pragma once

#include "protocol/current_route.h"
#include "protocol/lanes.h"
#include "protocol/round_records.h"
#include "protocol/run.h"

namespace ors {

class Positions {
 public:
  Positions(const Run* run, Lanes* lanes, const CurrentRoute* current_route)
      : run_(*run), lanes_(*lanes), current_route_(*current_route) {}

  // Queues KEY with the key's name, unless the lane still knows the name.
  void queue_key(KeyLane* entry, double now);

  void advance_unsent(KeyLane* entry);
  void advance_done(KeyLane* entry);
  void pass(KeyLane* entry, uint64_t round);
  void mark_changed(KeyLane* entry);
  void mark_reported(KeyLane* entry);

  void queue_heartbeat(Lane* lane, double now);
  void maybe_heartbeat(Lane* lane, double now);
  void keep_alive(Lane* lane, double now);  // keeps an idle connection alive

 private:
  const Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
};

}  // namespace ors
