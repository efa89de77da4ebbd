#include "protocol/recovery.h"

#include <algorithm>

#include "protocol/messages.h"

namespace ors {
namespace {

// Limits for successive connection errors of a lane without a result in between. After kMaxStrikes
// this worker suspects the reducer, so that other reducers take over. After kLastStrikes, with no
// other live reducer, the run ends: even a link that damages 10 % of the frames hardly gets there.
constexpr uint32_t kMaxStrikes = 3;
constexpr uint32_t kLastStrikes = 10;

// Whether an ERROR ends the run. All other errors concern only the connection.
bool ends_the_run(const Failure& failure) {
  return failure.rank >= 0 || failure.code == ErrorCode::kPeerLost ||
         failure.code == ErrorCode::kMismatch || failure.code == ErrorCode::kIntegrity;
}

}  // namespace

void Recovery::on_disconnect(Lane* lane, const std::string& why, double now) {
  if (lane->phase == Lane::Phase::kWanted) return;
  if (lane->phase != Lane::Phase::kDropped) lane->trouble = why;
  if (lane->unwelcomed_at < 0) lane->unwelcomed_at = now;
  lanes_.forget_drop(lane);
  failover_.reset_connection(lane);
  failover_.open_again(lane);
}

// Handles a connection error of a lane: drops the connection, and the lane connects again. The
// errors of a welcomed lane are counted. After kMaxStrikes the reducer is suspected as well. After
// kLastStrikes, if no other reducer is live, the run ends instead.
void Recovery::count_error(Lane* lane, const Failure& failure, double now) {
  const uint32_t strikes = lane->welcomed() ? ++lane->strikes : lane->strikes;
  if (strikes >= kLastStrikes && !others_are_live(lanes_.reducer_of(*lane)))
    return run_.end(failure);
  lanes_.drop(lane, failure.message, now);
  if (strikes >= kMaxStrikes) suspicions_.suspect(lane, failure.message, now);
}

bool Recovery::others_are_live(const Reducer& reducer) const {
  return std::any_of(lanes_.reducers().begin(), lanes_.reducers().end(), [&](const Reducer& other) {
    return other.slot != reducer.slot && current_route_.live(other);
  });
}

std::optional<Failure> Recovery::welcomed(Lane* lane, double now) {
  resume(lane, now);
  if (auto failure = failover_.learn(lane->welcome.route, *lane, now)) return failure;
  if (lane->restarted) {
    suspicions_.suspect(lane, "it was restarted and has lost its state of the run", now);
  }
  failover_.resend_control(lane, now);
  lost_reducers_.decide(now);
  return std::nullopt;
}

// The lane is welcomed again. Its streams continue if it still has the same state of the run.
void Recovery::resume(Lane* lane, double now) {
  ++reconnects_;
  lane->attempts = 0;
  suspicions_.clear_pause();
  lane->unwelcomed_at = -1;
  lane->last_heard = now;
  lane->silent = false;
  lane->absence = {};
  lane->none_absent_since = now;
  lane->route_known = lane->welcome.route.order();
  const bool same_process = lane->incarnation == lane->welcome.incarnation;
  const bool same = same_process && lane->instance == lane->welcome.instance;
  lane->drains = lane->drains && same_process;
  // The reducer was restarted, so its earlier failures say nothing about its network.
  if (!same_process) lanes_.reducer_of(*lane).patience = 0;
  lane->restarted = lane->bound && current_route_.live(lanes_.reducer_of(*lane)) && !same;
  if (!lane->restarted) lane->bind();
  suspicions_.clear(lane);
}

void Recovery::unreachable(Lane* lane, const std::string& why, double now) {
  lane->trouble = why;
  if (run_.over() || run_.bye_queued) {
    lane->phase = Lane::Phase::kClosed;
    return;
  }
  failover_.reset_connection(lane);
  failover_.open_again(lane);
  if (run_.joined) suspicions_.suspect(lane, why, now);
}

void Recovery::closed(Lane* lane, const std::string& why, double now) {
  if (lane->phase == Lane::Phase::kClosed) return;
  // Before the join a closed connection is retried; only an ERROR ends the join. A proxy, a reducer
  // that is just starting, and a lane that is restarted all close connections. A reducer that is
  // listed under two names closes the first connection, and its answer on the second explains why.
  if (!run_.over() && !run_.joined && lane->phase < Lane::Phase::kWelcomed)
    return unreachable(lane, why, now);
  if (run_.joined && !run_.over() && !run_.bye_queued) return on_disconnect(lane, why, now);
  lane->phase = Lane::Phase::kClosed;
  if (run_.over() || run_.bye_queued) return;
  run_.end(lane_failure(ErrorCode::kUnavailable, *lane, "the connection was closed: " + why));
}

// The lane broke the protocol, or bytes were corrupted on the way. Before the join this ends the
// run; after the join the lane is reconnected.
void Recovery::broken(Lane* lane, const Failure& failure, double now) {
  if (run_.over() || lane->phase == Lane::Phase::kDropped || lane->phase == Lane::Phase::kClosed)
    return;
  if (run_.joined) return count_error(lane, failure, now);
  lane->control.clear();
  lanes_.queue_frame(lane, {kError}, encode_error(failure));
  lane->phase = Lane::Phase::kClosed;  // it gets `failure` itself, not the run's ERROR
  run_.end(failure);
}

std::optional<Failure> Recovery::on_error(Lane* lane, std::string_view payload, double now) {
  Failure failure;
  if (const std::string wrong = decode_error(payload, &failure); !wrong.empty())
    return bad_frame(*lane, "ERROR", wrong);
  failure.message += " (from " + lane->name + ")";
  if (run_.joined && !ends_the_run(failure)) {
    count_error(lane, failure, now);
    return std::nullopt;
  }
  lane->phase = Lane::Phase::kClosed;
  run_.end(failure);
  return std::nullopt;
}

// Open rounds continue on the lane until a new route excludes its reducer.
std::optional<Failure> Recovery::on_goaway(Lane* lane, std::string_view payload, double now) {
  std::string reason;
  if (const std::string wrong = decode_goaway(payload, &reason); !wrong.empty())
    return bad_frame(*lane, "GOAWAY", wrong);
  lane->drains = true;
  if (run_.joined) suspicions_.suspect(lane, "it drains: " + reason, now);
  return std::nullopt;
}

}  // namespace ors
