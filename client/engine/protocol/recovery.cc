// A lane that is lost, and back (PROTOCOL.md, section 11): what depends on the connection ends with
// it; what depends on the lane's state of the run goes on where it was.
#include <algorithm>

#include "protocol/state.h"

namespace ors {
namespace {

// Errors in a row, without a result in between: after so many others do the lane's part, if any
// can; and so many are no chance, even on a link that damages every tenth frame.
constexpr uint32_t kMaxStrikes = 3;
constexpr uint32_t kLastStrikes = 10;

}  // namespace

// The loop is to close it; closed() then does the rest.
void State::drop(Lane* lane, const std::string& why, double now) {
  lane->phase = Lane::Phase::kDropped;
  lane->trouble = why;
  if (lane->lost_at < 0) lane->lost_at = now;
  lane->receiving.reset();
  lane->receiver.discard();
  to_drop_.push_back(lane);
}

std::vector<Lane*> State::to_drop() {
  std::vector<Lane*> lanes;
  lanes.swap(to_drop_);
  return lanes;
}

void State::lose(Lane* lane, const std::string& why, double now) {
  if (lane->phase == Lane::Phase::kWanted) return;
  if (lane->phase != Lane::Phase::kDropped) lane->trouble = why;
  if (lane->lost_at < 0) lane->lost_at = now;
  to_drop_.erase(std::remove(to_drop_.begin(), to_drop_.end(), lane), to_drop_.end());
  reset_connection(lane);
  want_again(lane);
}

void State::want_again(Lane* lane) {
  const bool left = leaving_ && live_rounds_ == 0;
  const bool gone = joined_ && lane->number >= reducers_[lane->reducer].count;
  lane->phase = left || gone ? Lane::Phase::kClosed : Lane::Phase::kWanted;
  if (lane->phase == Lane::Phase::kWanted) to_open_.push_back(lane);
}

// An error of this connection: a new one may do better.
void State::strike(Lane* lane, const Failure& failure, double now) {
  const uint32_t strikes = lane->welcomed() ? ++lane->strikes : lane->strikes;
  if (strikes >= kLastStrikes && !others_are_live(reducers_[lane->reducer])) return fail(failure);
  drop(lane, failure.message, now);
  if (strikes >= kMaxStrikes) suspect(lane, failure.message, now);
}

bool State::others_are_live(const Reducer& reducer) const {
  return std::any_of(reducers_.begin(), reducers_.end(), [&](const Reducer& other) {
    return other.slot != reducer.slot && live(other);
  });
}

void State::reset_connection(Lane* lane) {
  lane->receiver = Receiver(lane->name);
  lane->sender = Sender();
  lane->control.clear();
  lane->receiving.reset();
  lane->has_grant = false;
  lane->granted = {};
  for (const auto& [id, record] : keys_) {
    for (const auto& entry : record->lanes) {
      if (entry->lane != lane) continue;
      for (Share* share : entry->shares) reset_share(share);
      entry->recount();
      entry->announced = false;
      mark_reported(entry.get());
      entry->reported = 0;
      mark_changed(entry.get());
    }
  }
  lane->resends = true;
  if (joined_) rebuild_queues(lane);
}

// What had no answer is sent again, in order. It stays charged: the lane may have it.
void State::reset_share(Share* share) {
  for (size_t i = share->freed; i < share->chunks.size(); ++i) {
    Chunk& chunk = share->chunk(i);
    if (chunk.charge == Chunk::Charge::kNone) continue;
    chunk.state = Chunk::State::kReady;
    share->sent = std::min(share->sent, i);
  }
}

// A welcome after the join. The lane goes on if it has the state of the run that it had.
void State::welcomed_again(Lane* lane, double now) {
  ++reconnects_;
  lane->attempts = 0;
  stood_still_ = 0;  // the run has not ended without this worker
  lane->lost_at = -1;
  lane->last_heard = now;
  lane->silent = false;
  lane->absence = {};
  lane->complete_since = now;
  lane->route_known = lane->welcome.route.number;
  const bool same_process = lane->incarnation == lane->welcome.incarnation;
  const bool same = same_process && lane->instance == lane->welcome.instance;
  lane->drains = lane->drains && same_process;
  // It was restarted, and not cut off: nothing speaks against it.
  if (!same_process) reducers_[lane->reducer].patience = 0;
  lane->restarted = lane->bound && live(reducers_[lane->reducer]) && !same;
  if (!lane->restarted) bind(lane);
  forgive(lane);
}

void State::bind(Lane* lane) {
  lane->bound = lane->welcomed();
  lane->restarted = false;
  lane->incarnation = lane->welcome.incarnation;
  lane->instance = lane->welcome.instance;
}

// What the lane may not have heard: the connection that carried it is gone.
void State::tell_again(Lane* lane, double now) {
  tell_route(lane);
  if (lane->stats_waiting) {
    Header header;
    header.kind = kStats;
    queue_frame(lane, header, {});
  }
  if (!lane->usable()) return;
  for (const auto& [id, record] : keys_) {
    for (const auto& [number, round] : record->rounds) {
      if (!round->over) continue;
      for (uint32_t home = 0; home < route_.slots(); ++home) {
        if (carries(*lane, home)) tell_abandoned(*round, lane, home, now);
      }
    }
  }
  queue_heartbeat(lane, now);
  kick(lane);
}

// Ends the run for all ranks, with the same text.
void State::tell_failure() {
  Failure said = *failure_;
  said.key.clear();
  said.round = -1;
  if (said.rank < 0) said.rank = options_.rank;  // of the run, and not of a connection
  Header header;
  header.kind = kError;
  const std::string payload = encode_error(said);
  for (Lane* lane : all_lanes_) {
    if (!lane->welcomed()) continue;
    lane->control.clear();
    queue_frame(lane, header, payload);
  }
}

// This process stood still for so long, in which it sent nothing either.
void State::wake_up(double seconds, double now) {
  shift_clocks(seconds);
  if (seconds + 2 * heartbeat_ < worker_silence_) return;
  stood_still_ = seconds;
  woke_at_ = now;
}

// Nobody is to blame for what was not heard meanwhile.
void State::shift_clocks(double seconds) {
  const auto shift = [seconds](double* at) {
    if (*at >= 0) *at += seconds;
  };
  for (Lane* lane : all_lanes_) {
    shift(&lane->last_heard);
    shift(&lane->lost_at);
    shift(&lane->complete_since);
  }
  for (Reducer& reducer : reducers_) {
    shift(&reducer.lost_at);
    shift(&reducer.blocked_at);
    shift(&reducer.moved_at);
  }
}

}  // namespace ors
