#include "protocol/chunk_owners.h"

#include <algorithm>

namespace ors {

Route Route::first(std::vector<uint32_t> lanes) {
  Route route;
  route.since.assign(lanes.size(), 0);
  route.live.assign(lanes.size(), 1);
  route.lanes_by_slot = std::move(lanes);
  return route;
}

uint32_t Route::live_slots() const {
  return static_cast<uint32_t>(std::count(live.begin(), live.end(), 1u));
}

Route Route::with(uint32_t slot, bool live_now, uint32_t lanes) const {
  Route next = *this;
  next.number = number + 1;
  next.since[slot] = next.number;
  next.live[slot] = live_now ? 1 : 0;
  next.lanes_by_slot[slot] = lanes;
  for (uint32_t other = 0; other < slots(); ++other) {
    if (live[other] == 0 && next.live[other] == 0) next.since[other] = next.number;
  }
  return next;
}

const char* check_route(const Route& route) {
  const size_t slots = route.slots();
  if (route.live.size() != slots || route.lanes_by_slot.size() != slots) {
    return "the lists of a route differ in length";
  }
  if (slots == 0) return route.number == 0 ? nullptr : "a route without its slots";
  if (route.live_slots() == 0) return "a route without a live slot";
  if (*std::max_element(route.since.begin(), route.since.end()) > route.number) {
    return "a slot of a route is newer than the route";
  }
  return nullptr;
}

Owners::Owners(const Route& route) : lanes_(route.lanes_by_slot), live_(route.live) {
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    first_.push_back(total_);
    total_ += lanes_[slot];
    group_.push_back(live_[slot] != 0 ? 0 : ++dead_);
    if (live_[slot] != 0) live_slots_.push_back(slot);
  }
}

uint32_t Owners::home(uint64_t key, uint32_t chunk) const {
  return static_cast<uint32_t>(((key & 0xFFFFFFFFu) + chunk) % lanes_.size());
}

Place Owners::place(uint64_t key, uint32_t chunk) const {
  const uint64_t g = (key & 0xFFFFFFFFu) + chunk;
  uint64_t q = g / lanes_.size();
  Place place;
  place.home = static_cast<uint32_t>(g % lanes_.size());
  place.slot = place.home;
  if (live_[place.home] == 0) {
    place.slot = live_slots_[q % live_slots_.size()];
    q /= live_slots_.size();
  }
  place.lane = static_cast<uint32_t>(q % lanes_[place.slot]);
  place.stream = total_ * group_[place.home] + first_[place.slot] + place.lane;
  return place;
}

}  // namespace ors
