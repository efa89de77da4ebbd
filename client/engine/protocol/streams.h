// Streams that move: to other lanes with a route, or to a lane's next connection (PROTOCOL.md,
// section 11).
//
// Law: after apply() nothing of a stream that moved is left: no share, position or charge. What of
// the stream is not stable is sent to its new owner, whether this rank holds its result or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/rounds.h"

namespace ors {

class Streams {
 public:
  Streams(Run* run, Lanes* lanes, Routing* routing, Keys* keys, Positions* positions,
          Rounds* rounds)
      : run_(*run),
        lanes_(*lanes),
        routing_(*routing),
        keys_(*keys),
        positions_(*positions),
        rounds_(*rounds) {}

  std::optional<Failure> on_route(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> learn(const Route& route, const Lane& from, double now);
  void apply(const Route& route, double now);

  // The lane, whose connection is wanted.
  Lane* want(uint32_t reducer, uint32_t number);
  void open_again(Lane* lane);  // unless it is not needed any more
  // What depends on the lane's connection, which is gone.
  void reset_connection(Lane* lane);
  void tell_again(Lane* lane, double now);

 private:
  void move_key(KeyRecord* record, const std::vector<bool>& moved, double now);
  std::vector<uint32_t> take_out(Round* round, const std::vector<bool>& moved);
  void put_in(Round* round, const std::vector<uint32_t>& chunks);
  void forget_streams(KeyRecord* record, const std::vector<bool>& moved);
  void begin_streams(KeyRecord* record, const std::vector<bool>& moved);
  void rebuild_queues(const Lane* only);
  void reset_share(Share* share);

  Run& run_;
  Lanes& lanes_;
  Routing& routing_;
  Keys& keys_;
  Positions& positions_;
  Rounds& rounds_;
};

}  // namespace ors
