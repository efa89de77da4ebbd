// One lane as a worker sees it: how far the join is, what may be sent, what waits to be sent.
// Plain data; the rules are in join.cc and flow.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "connection.h"
#include "messages.h"
#include "round.h"

namespace ors {

struct Account {
  uint64_t limit = 0;
  uint64_t used = 0;
  bool fits(uint64_t cost) const { return used + cost <= limit; }
};

struct Lane {
  enum class Phase : uint8_t { kWanted, kOpening, kHello, kPending, kWelcomed, kClosed };

  Lane(uint32_t reducer_index, uint32_t lane_number, const std::string& address)
      : reducer(reducer_index),
        number(lane_number),
        name("reducer " + address + " (lane " + std::to_string(lane_number) + ")"),
        receiver(name) {}

  const uint32_t reducer;  // this worker's own numbering; `slot` is the job's
  const uint32_t number;
  const std::string name;
  Phase phase = Phase::kWanted;
  std::string trouble;  // why it could not be opened the last time
  Pending pending;
  Welcome welcome;
  double last_heard = 0;
  double last_sent = 0;
  double last_heartbeat = 0;

  Receiver receiver;
  Sender sender;
  std::deque<std::string> control;  // frames that go before any contribution
  bool kicked = false;              // in State's list of lanes with something to send
  bool last_frame_queued = false;   // BYE or ERROR: nothing follows it

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
  Queued granted;  // the same, if it was submitted and is not all sent

  std::vector<KeyLane*> changed;  // keys whose done the lane may not know
  uint64_t unreported_cost = 0;

  RoundRef receiving;  // whose target a payload is being read into
  bool stats_waiting = false;
  Value stats;
};

}  // namespace ors
