// Moves chunks: to the lanes that own them under a new route, when a reducer is out or in again, or
// to a lane's new connection (PROTOCOL.md, section 11). LostReducers decides which reducers are
// out; Owners (chunk_owners.h) says which lane owns a chunk.
//
// Law: apply() removes all shares, positions and charges that a moved stream had with its old
// owner. It then queues every contribution that is not stable for the new owner (except for
// abandoned rounds), even if this rank holds the result already, because other ranks may not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/rounds.h"

namespace ors {

class Failover {
 public:
  Failover(Run* run, Lanes* lanes, CurrentRoute* current_route, Keys* keys, Positions* positions,
           Rounds* rounds)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        keys_(*keys),
        positions_(*positions),
        rounds_(*rounds) {}

  std::optional<Failure> on_route(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> learn(const Route& route, const Lane& from, double now);
  // From now on, views of an epoch below this one are ignored, wherever they come from. A registry
  // that has lost its state may have decided them.
  void promise(uint32_t epoch) { promised_ = std::max(promised_, epoch); }
  // Takes the first route of a view that the registry has decided.
  std::optional<Failure> install(std::string_view payload, double now);
  void apply(const Route& route, double now);
  // Returns the first route of the view without these ranks.
  Route without(const std::vector<uint32_t>& ranks, uint32_t epoch) const;

  // Returns the lane and makes sure that its connection is opened.
  Lane* want(uint32_t reducer, uint32_t number);
  void open_again(Lane* lane);  // closes the lane for good if it is no longer needed
  // Resets all that belonged to the lane's ended connection. Unanswered contributions are
  // queued again.
  void reset_connection(Lane* lane);
  // Sends again the control frames that the ended connection may not have delivered.
  void resend_control(Lane* lane, double now);

 private:
  bool news(const Route& route) const;
  std::optional<Failure> check(const Route& route, const std::string& from) const;
  void end_uneven(double now);
  Failure excluded() const;
  void move_key(KeyRecord* record, const std::vector<bool>& moved, double now);
  std::vector<uint32_t> remove_shares(Round* round, const std::vector<bool>& moved);
  void add_shares(Round* round, const std::vector<uint32_t>& chunks);
  void forget_streams(KeyRecord* record, const std::vector<bool>& moved);
  void begin_streams(KeyRecord* record, const std::vector<bool>& moved);
  void rebuild_queues(const Lane* only);
  void reset_share(Share* share);

  Run& run_;
  Lanes& lanes_;
  CurrentRoute& current_route_;
  Keys& keys_;
  Positions& positions_;
  Rounds& rounds_;
  uint32_t promised_ = 0;
};

}  // namespace ors
