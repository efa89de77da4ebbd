#include "protocol/suspicions.h"

#include <algorithm>

#include "protocol/messages.h"
#include "protocol/texts.h"

namespace ors {
namespace {

constexpr double kReconnect = 0.3;     // seconds to reconnect before a lane is suspected
constexpr double kHelloTimeout = 5.0;  // seconds for the answer to a HELLO after the join
constexpr double kReconnectAll = 3.0;  // seconds for ranks that were paused together to reconnect
// Seconds for a hosted reducer to come back. Its rank starts it again within one or two, so after
// this time the rank is gone, too.
constexpr double kHostedWait = 10.0;

}  // namespace

void Suspicions::suspect(Lane* lane, const std::string& why, double now) {
  Reducer& reducer = lanes_.reducer_of(*lane);
  if (run_.over() || lane->number >= current_route_.lanes_in_use(reducer)) return;
  if (!lane->suspicion.empty()) return;
  const bool news = current_route_.suspicious(reducer) == nullptr;
  lane->suspicion = why;
  if (!news) return;
  ++count_;
  queue_suspect(&reducer, now);
  lost_reducers_.decide(now);
}

void Suspicions::queue_suspect(Reducer* reducer, double now) {
  reducer->told_at = now;
  if (current_route_.made_by(run_.options.rank)) return;
  const Lane* lane = current_route_.suspicious(*reducer);
  const Suspicion suspicion = {run_.options.rank, reducer->slot, current_route_.route().number,
                               lane->name + ": " + lane->suspicion, lane->restarted};
  lanes_.queue_on_welcomed({kSuspect}, encode_suspect(suspicion));
}

std::optional<Failure> Suspicions::on_suspect(Lane* lane, std::string_view payload, double now) {
  Suspicion suspicion;
  if (const std::string wrong = decode_suspect(payload, &suspicion); !wrong.empty())
    return bad_frame(*lane, "SUSPECT", wrong);
  const uint32_t slot = suspicion.slot;
  if (!current_route_.made_by(run_.options.rank) || !run_.joined ||
      slot >= current_route_.route().slots())
    return std::nullopt;
  if (suspicion.route < current_route_.route().since[slot]) return std::nullopt;
  if (suspicion.restarted && lost_reducers_.may_begin_again(slot)) {
    lost_reducers_.begin_again(slot, now);
    return std::nullopt;
  }
  if (!lost_reducers_.may_put_out(slot)) return std::nullopt;
  lost_reducers_.put_out(&current_route_.at_slot(slot),
                         "rank " + std::to_string(suspicion.rank) + ": " + suspicion.reason, now);
  return std::nullopt;
}

// A lane became silent or sends again. The connection stays open: if the lane or the network is
// just slow, a close would look to the lane as if this worker had died.
void Suspicions::change_silence(Lane* lane, double silent, double now) {
  lane->silent = !lane->silent;
  lane->none_absent_since = lane->silent || !lane->absence.absent.empty() ? -1 : now;
  if (!lane->silent) return clear(lane);
  lane->trouble = "nothing was heard from it for " + in_seconds(silent);
  suspect(lane, lane->trouble, now);
}

void Suspicions::clear(Lane* lane) {
  if (lane->welcomed() && !lane->restarted && !lane->drains) lane->suspicion.clear();
}

// Suspects lanes that are silent, do not answer HELLO, or do not reconnect.
void Suspicions::watch_lanes(double now) {
  for (size_t i = 0; i < lanes_.all().size(); ++i) {  // a new route may add some
    Lane* lane = lanes_.all()[i];
    // By the clock of the lane's loop: what a loop that gets no CPU has not read says nothing.
    const double silent = std::min(now, run_.looked_at[lane->loop]) - lane->last_heard;
    const bool talks = lane->welcomed() || lane->phase == Lane::Phase::kPending;
    if (lane->phase == Lane::Phase::kHello && silent > kHelloTimeout) {
      lanes_.drop(lane, "it did not answer the hello for " + in_seconds(silent), now);
      suspect(lane, lane->trouble, now);
    } else if (talks && (silent > run_.options.silence) != lane->silent) {
      change_silence(lane, silent, now);
    } else if (!lane->welcomed() && lane->unwelcomed_at < 0) {
      lane->unwelcomed_at = now;
    } else if (!lane->welcomed() && now - lane->unwelcomed_at > kReconnect) {
      suspect(lane, lane->trouble.empty() ? "it does not answer" : lane->trouble, now);
    }
    if (run_.over()) return;
  }
}

// Whether an open round waits for a lane of this reducer that is disconnected or silent.
bool Suspicions::needed(const Reducer& reducer) const {
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& entry : record->lanes) {
      const Lane& lane = *entry->lane;
      const bool missing = &lanes_.reducer_of(lane) == &reducer && !lane.reached();
      if (missing && entry->first_unheld < entry->shares.size()) return true;
    }
  }
  return false;
}

// Whether the run ended while this process was paused: every live lane answers, and none has the
// run.
bool Suspicions::run_ended_in_pause() const {
  if (pause_ <= 0) return false;
  return std::all_of(
      lanes_.reducers().begin(), lanes_.reducers().end(), [this](const Reducer& reducer) {
        const auto waits = [](const auto& lane) { return lane->phase == Lane::Phase::kPending; };
        return !current_route_.live(reducer) ||
               std::all_of(reducer.lanes.begin(), reducer.lanes.end(), waits);
      });
}

Failure Suspicions::pause_failure() const {
  const std::string message =
      run_.rank_of_job(run_.options.rank) + ", this process itself, stood still for " +
      in_seconds(pause_) +
      " (it was stopped or starved). The reducers count a worker as lost after " +
      in_seconds(run_.worker_silence) +
      " without a byte, and the run has ended without it. If such pauses are normal "
      "here, raise worker_silence (REDUCER_WORKER_SILENCE) on rank 0";
  return {ErrorCode::kPeerLost, message, "lost", run_.options.rank};
}

void Suspicions::watch_reducers(double now) {
  const bool run_ended = run_ended_in_pause();
  if (run_ended && now - pause_end_ >= kReconnectAll) return run_.end(pause_failure());
  for (Reducer& reducer : lanes_.reducers()) {
    const bool unreached = !reducer.reached();
    if (!unreached) reducer.unreached_at = -1;
    if (unreached && reducer.unreached_at < 0) reducer.unreached_at = now;
    const bool blocked =
        unreached && current_route_.live(reducer) && rounds_.open_rounds() > 0 && needed(reducer);
    if (!blocked) reducer.blocked_at = -1;
    if (blocked && reducer.blocked_at < 0) reducer.blocked_at = now;
    const auto host = host_of(reducer);
    const double wait = run_.options.reducer_wait;
    if (blocked && now - reducer.blocked_at >= (host ? std::min(wait, kHostedWait) : wait)) {
      return run_.end(run_ended ? pause_failure()
                      : host    ? lost_host(*host, now - reducer.blocked_at)
                                : no_reducer(now));
    }
    const bool again = now - reducer.told_at >= run_.heartbeat;
    if (current_route_.suspicious(reducer) != nullptr && again) queue_suspect(&reducer, now);
  }
}

// The other rank with which the reducer ends; none if there is none, and in an elastic run, which
// goes on without the rank.
std::optional<uint32_t> Suspicions::host_of(const Reducer& reducer) const {
  const auto host = run_.options.host_of(lanes_.index_of(reducer));
  return host == run_.options.rank || run_.options.elastic ? std::nullopt : host;
}

Failure Suspicions::lost_host(uint32_t rank, double seconds) const {
  const std::string message = run_.rank_of_job(rank) +
                              " is lost, and with it the reducer that it hosted: neither has been "
                              "heard of for " +
                              in_seconds(seconds);
  return {ErrorCode::kPeerLost, message, "lost", rank};
}

Failure Suspicions::no_reducer(double now) const {
  std::string names;
  for (const Reducer& reducer : lanes_.reducers()) {
    if (reducer.blocked_at < 0) continue;
    std::string trouble;
    for (const auto& lane : reducer.lanes) {
      if (!lane->reached() && trouble.empty()) {
        trouble = lane->restarted ? "it was restarted" : lane->trouble;
      }
    }
    names += (names.empty() ? "" : ", ") + std::string("slot ") + std::to_string(reducer.slot) +
             " at " + reducer.address + " for " + in_seconds(now - reducer.blocked_at) +
             (trouble.empty() ? "" : " (" + trouble + ")");
  }
  return {ErrorCode::kUnavailable,
          run_.rank_of_job(run_.options.rank) + " could not reach the reducer of " + names +
              ", and no other reducer can take over: is `reducer serve` running there?",
          "unreachable"};
}

void Suspicions::after_pause(double seconds, double now) {
  shift_clocks(seconds);
  if (seconds + 2 * run_.heartbeat < run_.worker_silence) return;
  pause_ = seconds;
  pause_end_ = now;
}

// Moves all timers by the pause, so that no peer is suspected for silence during the pause.
void Suspicions::shift_clocks(double seconds) {
  const auto shift = [seconds](double* at) {
    if (*at >= 0) *at += seconds;
  };
  for (Lane* lane : lanes_.all()) {
    shift(&lane->last_heard);
    shift(&lane->unwelcomed_at);
    shift(&lane->none_absent_since);
  }
  for (Reducer& reducer : lanes_.reducers()) {
    shift(&reducer.unreached_at);
    shift(&reducer.blocked_at);
    shift(&reducer.moved_at);
  }
}

}  // namespace ors
