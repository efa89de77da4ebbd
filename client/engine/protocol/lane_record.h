// A worker's record of one lane: phase of the join, credit, send queues, suspicion. Plain data; the
// rules are in joining.cc, recovery.cc and sending.cc. The lane's connection is not here: the loop
// owns the socket and the bytes under way.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "protocol/round_records.h"

namespace ors {

struct Account {
  uint64_t limit = 0;
  uint64_t used = 0;
  bool fits(uint64_t cost) const { return used + cost <= limit; }
};

struct Lane {
  // kDropped: the connection must be closed. kClosed: the connection is not opened again.
  enum class Phase : uint8_t { kWanted, kOpening, kHello, kPending, kWelcomed, kDropped, kClosed };

  Lane(uint32_t reducer_index, uint32_t lane_number, uint32_t of_loop, const std::string& address)
      : reducer(reducer_index),
        number(lane_number),
        loop(of_loop),
        name("reducer " + address + " (lane " + std::to_string(lane_number) + ")") {}

  bool welcomed() const { return phase == Phase::kWelcomed; }
  bool usable() const { return welcomed() && !restarted; }
  bool reached() const { return usable() && !silent; }
  // From now on the lane's streams belong to the instance of the run that its last WELCOME named.
  void bind() {
    bound = welcomed();
    restarted = false;
    incarnation = welcome.incarnation;
    instance = welcome.instance;
  }

  const uint32_t reducer;  // index in this worker's address list; `slot` is the job's number
  const uint32_t number;
  const uint32_t loop;  // that owns its connection
  const std::string name;
  Phase phase = Phase::kWanted;
  std::string trouble;    // why the last attempt or connection failed
  uint32_t attempts = 0;  // connection attempts since the last WELCOME
  uint32_t strikes = 0;   // connection errors since its last result
  Pending pending;
  double pending_at = 0;  // when the last PENDING came: the absent ranks are the same since
  Welcome welcome;

  // The instance of the run that holds the lane's streams: named by the first WELCOME after a route
  // moved the slot. `restarted`: the lane now has a different instance; nothing is sent until a new
  // route.
  bool bound = false;
  std::string incarnation;
  uint64_t instance = 0;
  bool restarted = false;
  bool drains = false;  // GOAWAY received
  bool silent = false;  // nothing was received for longer than Options::silence
  std::pair<uint32_t, uint32_t> route_known;  // Route::order() of the newest that it surely has
  std::string suspicion;                      // why this worker suspects its slot; empty if not
  double unwelcomed_at = -1;      // when it stopped being welcomed(); below 0 if welcomed
  Absence absence;                // last ABSENT
  double none_absent_since = -1;  // since when no rank is absent there; below 0 if one is

  double last_heard = 0;
  double last_sent = 0;
  double last_heartbeat = 0;

  std::deque<std::string> control;  // control frames; sent before contributions
  bool kicked = false;              // in Orders::kicked

  struct Queued {
    RoundRef round;  // keeps `share` alive
    Share* share = nullptr;
  };
  std::deque<Queued> queue;        // shares with chunks to send, by priority and submission
  std::deque<Queued> undescribed;  // shares whose chunk 0 was neither sent nor described
  Account credit;
  Account grant;
  bool has_grant = false;
  uint64_t granted_key = 0;
  uint64_t granted_round = 0;
  uint32_t granted_home = 0;
  Queued granted;  // its share, if submitted and not fully sent

  bool resends = false;  // retransmits after a reconnect are pending

  std::vector<KeyLane*> changed;  // streams whose `done` the lane may not know
  uint64_t unreported_cost = 0;

  struct Receiving {
    RoundRef round;  // whose target the receiver uses; null: none
    uint32_t chunk = 0;
    bool wanted = false;  // false: this rank does not need the result, or not any more
    BufferRef kept;       // of a result that is kept: where the receiver copies it
    uint32_t crc = 0;     // of the result, as it travels
  };
  std::deque<Receiving> receiving;  // results that have begun and not ended, in their order
  bool stats_waiting = false;
  Value stats;
};

}  // namespace ors
