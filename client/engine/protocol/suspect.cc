// Who is gone: reducers that this worker cannot reach, and ranks that the reducers cannot; and what
// rank 0, which alone makes routes, does about a reducer (PROTOCOL.md, section 11).
#include <algorithm>
#include <cstdio>

#include "protocol/state.h"

namespace ors {
namespace {

constexpr double kReconnect = 0.3;  // seconds; a new connection takes milliseconds
constexpr double kComplete = 0.5;   // a slot is taken in when no rank was absent for so long
constexpr double kPatience = 1.0;   // for the lanes of a slot that is out to miss ranks
constexpr double kMostPatience = 30.0;
constexpr double kSteady = 60.0;        // a slot that was in for so long starts over
constexpr double kUnreachedLane = 5.0;  // then its word on other ranks is not waited for
constexpr double kHelloPatience = 5.0;  // for an answer to a HELLO after the join
constexpr double kComeBack = 3.0;       // for ranks that stood still together to meet again

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", value);
  return text;
}

}  // namespace

bool State::all_welcomed(const Reducer& reducer) const {
  for (uint32_t number = 0; number < reducer.count; ++number) {
    if (number >= reducer.lanes.size() || !reducer.lanes[number]->welcomed()) return false;
  }
  return reducer.count > 0;
}

bool State::reached(const Reducer& reducer) const {
  const auto bad = [](const auto& lane) { return lane->restarted || lane->silent; };
  return all_welcomed(reducer) && std::none_of(reducer.lanes.begin(), reducer.lanes.end(), bad);
}

// The lane because of which this worker suspects a live slot, if it does.
const Lane* State::suspicious(const Reducer& reducer) const {
  if (!live(reducer)) return nullptr;
  for (const auto& lane : reducer.lanes) {
    if (!lane->suspicion.empty()) return lane.get();
  }
  return nullptr;
}

std::vector<uint32_t> State::suspected() const {
  std::vector<uint32_t> slots;
  for (const Reducer& reducer : reducers_) {
    if (joined_ && suspicious(reducer) != nullptr) slots.push_back(reducer.slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

void State::suspect(Lane* lane, const std::string& why, double now) {
  Reducer& reducer = reducers_[lane->reducer];
  if (failure_ || !live(reducer) || lane->number >= route_.lanes_by_slot[reducer.slot]) return;
  if (!lane->suspicion.empty()) return;
  const bool news = suspicious(reducer) == nullptr;
  lane->suspicion = why;
  if (!news) return;
  ++suspicions_;
  tell_suspicion(&reducer, now);
  decide(now);
}

void State::tell_suspicion(Reducer* reducer, double now) {
  reducer->told_at = now;
  if (options_.rank == 0) return;
  Suspicion suspicion;
  suspicion.rank = options_.rank;
  suspicion.slot = reducer->slot;
  suspicion.route = route_.number;
  const Lane* lane = suspicious(*reducer);
  suspicion.reason = lane->name + ": " + lane->suspicion;
  Header header;
  header.kind = kSuspect;
  const std::string payload = encode_suspect(suspicion);
  for (Lane* other : all_lanes_) {
    if (other->welcomed()) queue_frame(other, header, payload);
  }
}

std::optional<Failure> State::on_suspect(Lane* lane, std::string_view payload, double now) {
  Suspicion suspicion;
  if (const char* wrong = decode_suspect(payload, &suspicion)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad SUSPECT: ") + wrong);
  }
  const uint32_t slot = suspicion.slot;
  if (options_.rank != 0 || !joined_ || slot >= route_.slots()) return std::nullopt;
  if (suspicion.route < route_.since[slot] || !may_put_out(slot)) return std::nullopt;
  put_out(&at_slot(slot), "rank " + std::to_string(suspicion.rank) + ": " + suspicion.reason, now);
  return std::nullopt;
}

// --- rank 0 ---

// All its lanes are here, but have lost their state of the run.
bool State::is_new(const Reducer& reducer) const {
  const auto& lanes = reducer.lanes;
  return all_welcomed(reducer) &&
         std::any_of(lanes.begin(), lanes.end(), [](const auto& l) { return l->restarted; }) &&
         std::none_of(lanes.begin(), lanes.end(),
                      [](const auto& l) { return l->silent || l->drains; });
}

// Only if another slot is left that this worker itself can reach.
bool State::may_put_out(uint32_t slot) const {
  if (route_.live[slot] == 0) return false;
  return std::any_of(reducers_.begin(), reducers_.end(), [&](const Reducer& other) {
    return other.slot != slot && live(other) && suspicious(other) == nullptr && reached(other);
  });
}

bool State::may_take_in(const Reducer& reducer, double now) const {
  if (leaving_ || !all_welcomed(reducer)) return false;
  if (now - reducer.moved_at < reducer.patience) return false;
  return std::all_of(reducer.lanes.begin(), reducer.lanes.begin() + reducer.count,
                     [now](const auto& lane) {
                       return !lane->drains && lane->complete_since >= 0 &&
                              now - lane->complete_since >= kComplete;
                     });
}

// A slot that only some ranks reach would go out and in, until its lanes miss those ranks: each
// time it stays out for longer, unless it comes back as another process.
void State::put_out(Reducer* reducer, const std::string& why, double now) {
  const bool again = reducer->moved_at >= 0 && now - reducer->moved_at < kSteady;
  const double longer = std::clamp(2 * reducer->patience, kPatience, kMostPatience);
  reducer->patience = again ? longer : kPatience;
  reducer->moved_at = now;
  const uint32_t slot = reducer->slot;
  stalls_.push("reducer " + reducer->address + " is out: " + why +
               "; its part of the work goes to the others");
  apply_route(route_.with(slot, false, route_.lanes_by_slot[slot]), now);
}

void State::take_in(Reducer* reducer, double now) {
  reducer->moved_at = now;
  stalls_.push("reducer " + reducer->address + " is in again");
  apply_route(route_.with(reducer->slot, true, reducer->count), now);
}

void State::decide(double now) {
  if (options_.rank != 0 || !joined_ || failure_ || bye_queued_) return;
  for (Reducer& reducer : reducers_) {
    if (live(reducer) && suspicious(reducer) != nullptr) {
      if (is_new(reducer)) {
        take_in(&reducer, now);
      } else if (may_put_out(reducer.slot)) {
        put_out(&reducer, suspicious(reducer)->suspicion, now);
      }
    } else if (!live(reducer) && may_take_in(reducer, now)) {
      take_in(&reducer, now);
    }
  }
}

// --- time ---

// A lane has fallen silent, or speaks again. Its connection stays as it is: if the network or the
// lane is only slow, closing would look to the lane as if this worker had died.
void State::hear(Lane* lane, double silent, double now) {
  lane->silent = !lane->silent;
  lane->complete_since = lane->silent || !lane->absence.absent.empty() ? -1 : now;
  if (!lane->silent) return forgive(lane);
  lane->trouble = "nothing was heard from it for " + seconds(silent);
  suspect(lane, lane->trouble, now);
}

void State::forgive(Lane* lane) {
  if (lane->welcomed() && !lane->restarted && !lane->drains) lane->suspicion.clear();
}

// Lanes that are silent or do not come back.
void State::watch_lanes(double now) {
  for (size_t i = 0; i < all_lanes_.size(); ++i) {  // a new route may add some
    Lane* lane = all_lanes_[i];
    const double silent = now - lane->last_heard;
    const bool talks = lane->welcomed() || lane->phase == Lane::Phase::kPending;
    if (lane->phase == Lane::Phase::kHello && silent > kHelloPatience) {
      drop(lane, "it did not answer the hello for " + seconds(silent), now);
      suspect(lane, lane->trouble, now);
    } else if (talks && (silent > options_.silence) != lane->silent) {
      hear(lane, silent, now);
    } else if (!lane->welcomed() && lane->lost_at < 0) {
      lane->lost_at = now;
    } else if (!lane->welcomed() && now - lane->lost_at > kReconnect) {
      suspect(lane, lane->trouble.empty() ? "it does not answer" : lane->trouble, now);
    }
    if (failure_) return;
  }
}

// Whether an open round waits for a lane of it that is lost, or that stands still.
bool State::needed(const Reducer& reducer) const {
  for (const auto& [id, record] : keys_) {
    for (const auto& entry : record->lanes) {
      const Lane& lane = *entry->lane;
      const bool lost = &reducers_[lane.reducer] == &reducer && (!lane.usable() || lane.silent);
      if (lost && entry->first_unheld < entry->shares.size()) return true;
    }
  }
  return false;
}

// Every lane answers, and has the run no more: it has ended since this worker was stopped.
bool State::was_given_up() const {
  if (stood_still_ <= 0) return false;
  return std::all_of(reducers_.begin(), reducers_.end(), [this](const Reducer& reducer) {
    const auto waits = [](const auto& lane) { return lane->phase == Lane::Phase::kPending; };
    return !live(reducer) || std::all_of(reducer.lanes.begin(), reducer.lanes.end(), waits);
  });
}

Failure State::stood_still() const {
  Failure failure;
  failure.code = ErrorCode::kPeerLost;
  failure.rank = options_.rank;
  failure.reason = "lost";
  failure.message = "rank " + std::to_string(options_.rank) + " of job '" + options_.job +
                    "', this process itself, stood still for " + seconds(stood_still_) +
                    " (it was stopped or starved): the reducers call a worker lost after " +
                    seconds(worker_silence_) +
                    " without a byte, and the run has ended without it; where such pauses are "
                    "ordinary, raise worker_silence (REDUCER_WORKER_SILENCE) on rank 0";
  return failure;
}

void State::watch_reducers(double now) {
  const bool given_up = was_given_up();
  if (given_up && now - woke_at_ >= kComeBack) return fail(stood_still());
  for (Reducer& reducer : reducers_) {
    const bool lost = !reached(reducer);
    if (!lost) reducer.lost_at = -1;
    if (lost && reducer.lost_at < 0) reducer.lost_at = now;
    const bool blocked = lost && live(reducer) && open_rounds_ > 0 && needed(reducer);
    if (!blocked) reducer.blocked_at = -1;
    if (blocked && reducer.blocked_at < 0) reducer.blocked_at = now;
    if (blocked && now - reducer.blocked_at >= options_.reducer_wait) {
      return fail(given_up ? stood_still() : no_reducer(now));
    }
    const bool again = now - reducer.told_at >= heartbeat_;
    if (suspicious(reducer) != nullptr && again) tell_suspicion(&reducer, now);
  }
}

Failure State::no_reducer(double now) const {
  std::string names;
  for (const Reducer& reducer : reducers_) {
    if (reducer.blocked_at < 0) continue;
    std::string trouble;
    for (const auto& lane : reducer.lanes) {
      if ((!lane->usable() || lane->silent) && trouble.empty()) {
        trouble = lane->restarted ? "it was restarted" : lane->trouble;
      }
    }
    names += (names.empty() ? "" : ", ") + std::string("slot ") + std::to_string(reducer.slot) +
             " at " + reducer.address + " for " + seconds(now - reducer.blocked_at) +
             (trouble.empty() ? "" : " (" + trouble + ")");
  }
  Failure failure;
  failure.code = ErrorCode::kUnavailable;
  failure.reason = "unreachable";
  failure.message = "rank " + std::to_string(options_.rank) + " of job '" + options_.job +
                    "' could not reach the reducer of " + names +
                    ", and no route leads around: is `reducer serve` running there?";
  return failure;
}

// --- other ranks ---

std::optional<Failure> State::on_absent(Lane* lane, std::string_view payload, double now) {
  Absence absence;
  if (const char* wrong = decode_absent(payload, &absence)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad ABSENT: ") + wrong);
  }
  const bool complete = absence.absent.empty();
  if (!complete) lane->complete_since = -1;
  if (complete && lane->complete_since < 0) lane->complete_since = now;
  lane->absence = std::move(absence);
  watch_ranks(now);
  return std::nullopt;
}

// Why a rank is lost: every lane of every live slot says so, but for slots that are out of reach.
std::optional<std::string> State::lost_reason(uint32_t rank, double now) const {
  std::optional<std::string> reason;
  for (const Reducer& reducer : reducers_) {
    if (!live(reducer)) continue;
    if (!reached(reducer)) {
      const bool long_ago = reducer.lost_at >= 0 && now - reducer.lost_at >= kUnreachedLane;
      if (!long_ago) return std::nullopt;
      continue;
    }
    for (uint32_t number = 0; number < reducer.count; ++number) {
      const auto& absent = reducer.lanes[number]->absence.absent;
      const auto found = std::find_if(absent.begin(), absent.end(),
                                      [rank](const auto& entry) { return entry.first == rank; });
      if (found == absent.end()) return std::nullopt;
      if (!reason) reason = found->second;
    }
  }
  return reason;
}

void State::watch_ranks(double now) {
  if (!joined_ || failure_ || bye_queued_) return;
  Failure failure;
  failure.code = ErrorCode::kPeerLost;
  for (const Lane* lane : all_lanes_) {
    if (!lane->usable()) continue;
    for (const auto& [rank, why] : lane->absence.absent) {
      const auto reason = lost_reason(rank, now);
      if (rank == options_.rank || !reason) continue;
      failure.rank = rank;
      failure.reason = "lost";
      failure.message =
          "rank " + std::to_string(rank) + " of job '" + options_.job + "' is lost: " + *reason;
      return fail(failure);
    }
    for (const uint32_t rank : lane->absence.left) {
      // It left when all its rounds were held everywhere: what is open here it never joined.
      if (rank == options_.rank || open_rounds_ == 0) continue;
      failure.rank = rank;
      failure.reason = "left";
      failure.message = "rank " + std::to_string(rank) + " of job '" + options_.job +
                        "' has left, and open rounds need it";
      return fail(failure);
    }
  }
}

}  // namespace ors
