#include "protocol/lost_reducers.h"

#include <algorithm>

namespace ors {
namespace {

constexpr double kNoneAbsent = 0.5;  // seconds without an absent rank before a slot is taken in
// Seconds that a slot stays out at least. By then its lanes have named the ranks that they miss.
constexpr double kPatience = 1.0;
constexpr double kMostPatience = 30.0;
constexpr double kSteady = 60.0;  // after so many seconds in the route, patience is kPatience again

}  // namespace

// Whether all its lanes are connected but have lost their state of the run.
bool LostReducers::is_new(const Reducer& reducer) const {
  const auto& lanes = reducer.lanes;
  return may_begin_again(reducer.slot) &&
         std::any_of(lanes.begin(), lanes.end(), [](const auto& l) { return l->restarted; });
}

// Whether another live slot is left that this worker can reach.
bool LostReducers::may_put_out(uint32_t slot) const {
  if (!current_route_.live(slot)) return false;
  return std::any_of(lanes_.reducers().begin(), lanes_.reducers().end(), [&](const Reducer& other) {
    return other.slot != slot && current_route_.live(other) &&
           current_route_.suspicious(other) == nullptr && other.reached();
  });
}

bool LostReducers::may_begin_again(uint32_t slot) const {
  const Reducer& reducer = current_route_.at_slot(slot);
  return current_route_.live(slot) && reducer.all_welcomed() &&
         std::none_of(reducer.lanes.begin(), reducer.lanes.end(),
                      [](const auto& lane) { return lane->silent || lane->drains; });
}

bool LostReducers::may_take_in(const Reducer& reducer, double now) const {
  if (run_.leaving || !reducer.all_welcomed()) return false;
  if (now - reducer.moved_at < reducer.patience) return false;
  return std::all_of(reducer.lanes.begin(), reducer.lanes.begin() + reducer.count,
                     [now](const auto& lane) {
                       return !lane->drains && lane->none_absent_since >= 0 &&
                              now - lane->none_absent_since >= kNoneAbsent;
                     });
}

// Whether a rank has left. No round can need the route any more, and hosted reducers go with their
// workers.
bool LostReducers::run_ends() const {
  const auto& lanes = lanes_.all();
  return run_.leaving || std::any_of(lanes.begin(), lanes.end(),
                                     [](const Lane* lane) { return !lane->absence.left.empty(); });
}

// The slot stays out for at least `patience` seconds, longer each time. Otherwise a reducer that
// only some ranks can reach would go out and in all the time. A restarted reducer starts over.
void LostReducers::put_out(Reducer* reducer, const std::string& why, double now) {
  const bool again = reducer->moved_at >= 0 && now - reducer->moved_at < kSteady;
  const double longer = std::clamp(2 * reducer->patience, kPatience, kMostPatience);
  reducer->patience = again ? longer : kPatience;
  reducer->moved_at = now;
  const uint32_t slot = reducer->slot;
  if (!run_ends()) {
    reports_.push("reducer " + reducer->address + " is out: " + why +
                  "; its part of the work goes to the others");
  }
  failover_.apply(
      current_route_.route().with(slot, false, current_route_.route().lanes_by_slot[slot]), now);
}

void LostReducers::take_in(Reducer* reducer, double now) {
  reducer->moved_at = now;
  reports_.push("reducer " + reducer->address + " is in again");
  failover_.apply(current_route_.route().with(reducer->slot, true, reducer->count), now);
}

void LostReducers::decide(double now) {
  if (!current_route_.made_by(run_.options.rank) || !run_.joined || run_.over() || run_.bye_queued)
    return;
  for (Reducer& reducer : lanes_.reducers()) {
    if (current_route_.live(reducer) && current_route_.suspicious(reducer) != nullptr) {
      if (is_new(reducer)) {
        take_in(&reducer, now);
      } else if (may_put_out(reducer.slot)) {
        put_out(&reducer, current_route_.suspicious(reducer)->suspicion, now);
      }
    } else if (!current_route_.live(reducer) && may_take_in(reducer, now)) {
      take_in(&reducer, now);
    }
  }
}

}  // namespace ors
