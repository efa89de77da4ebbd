// One lane as a worker sees it: how far the join is, what may be sent, what waits to be sent.
// Plain data; the rules are in join.cc and flow.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "protocol/connection.h"
#include "protocol/messages.h"
#include "protocol/round.h"

namespace ors {

struct Account {
  uint64_t limit = 0;
  uint64_t used = 0;
  bool fits(uint64_t cost) const { return used + cost <= limit; }
};

struct Lane {
  // kDropped: its connection is to be closed. kClosed: and it is not wanted again.
  enum class Phase : uint8_t { kWanted, kOpening, kHello, kPending, kWelcomed, kDropped, kClosed };

  Lane(uint32_t reducer_index, uint32_t lane_number, const std::string& address)
      : reducer(reducer_index),
        number(lane_number),
        name("reducer " + address + " (lane " + std::to_string(lane_number) + ")"),
        receiver(name) {}

  bool welcomed() const { return phase == Phase::kWelcomed; }
  bool usable() const { return welcomed() && !restarted; }

  const uint32_t reducer;  // this worker's own numbering; `slot` is the job's
  const uint32_t number;
  const std::string name;
  Phase phase = Phase::kWanted;
  std::string trouble;    // why it could not be opened, or was lost, the last time
  uint32_t attempts = 0;  // to open it, since it was welcomed
  uint32_t strikes = 0;   // errors of its connections since its last result
  Pending pending;
  Welcome welcome;

  // The state of the run that its streams live in: that of the first welcome since a route moved
  // its slot. `restarted`: it has another one now, and gets nothing until a route says where to.
  bool bound = false;
  std::string incarnation;
  uint64_t instance = 0;
  bool restarted = false;
  bool drains = false;         // it said GOAWAY
  bool silent = false;         // nothing has come for too long
  uint32_t route_known = 0;    // the newest route that it is known to know
  std::string suspicion;       // why this worker suspects its slot; empty: it does not
  double lost_at = -1;         // since then it is not welcomed; below 0: it is
  Absence absence;             // what it said last
  double complete_since = -1;  // since then it misses no rank; below 0: it does

  double last_heard = 0;
  double last_sent = 0;
  double last_heartbeat = 0;

  Receiver receiver;
  Sender sender;
  std::deque<std::string> control;  // frames that go before any contribution
  bool kicked = false;              // in State's list of lanes with something to send

  struct Queued {
    RoundRef round;  // keeps `share` alive
    Share* share = nullptr;
  };
  std::deque<Queued> queue;        // rounds with chunks to send, in the order of submission
  std::deque<Queued> undescribed;  // those whose chunk 0 is here and was not sent
  Account credit;
  Account grant;
  bool has_grant = false;
  uint64_t granted_key = 0;
  uint64_t granted_round = 0;
  uint32_t granted_home = 0;
  Queued granted;  // the same, if it was submitted and is not all sent

  bool resends = false;  // what a lost connection had without an answer is not all sent again

  std::vector<KeyLane*> changed;  // keys whose done the lane may not know
  uint64_t unreported_cost = 0;

  RoundRef receiving;  // whose target a payload is being read into
  uint32_t receiving_chunk = 0;
  bool stats_waiting = false;
  Value stats;
};

}  // namespace ors
