#include "protocol/current_route.h"

#include <algorithm>

#include "protocol/messages.h"

namespace ors {

void CurrentRoute::begin(std::vector<uint32_t> lanes_by_slot,
                         const std::vector<uint32_t>& weights) {
  weights_ = weights;
  if (!weights.empty()) heaviest_ = *std::max_element(weights.begin(), weights.end());
  by_slot_.resize(lanes_by_slot.size());
  for (uint32_t at = 0; at < by_slot_.size(); ++at) by_slot_[lanes_.reducers()[at].slot] = at;
  take(Route::first(std::move(lanes_by_slot)));
}

void CurrentRoute::take(const Route& route) {
  route_ = route;
  owners_ = Owners(route_, weights_);
}

void CurrentRoute::exchange_slots(Reducer* a, Reducer* b) {
  std::swap(a->slot, b->slot);
  for (const Reducer* reducer : {a, b}) {
    by_slot_[reducer->slot] = lanes_.index_of(*reducer);
  }
}

const Lane* CurrentRoute::suspicious(const Reducer& reducer) const {
  if (!live(reducer)) return nullptr;
  for (const auto& lane : reducer.lanes) {
    if (!lane->suspicion.empty()) return lane.get();
  }
  return nullptr;
}

bool CurrentRoute::carries(const Lane& lane, uint32_t home) const {
  const Reducer& reducer = lanes_.reducer_of(lane);
  if (lane.number >= lanes_in_use(reducer)) return false;
  return home == reducer.slot || !live(home);
}

std::vector<Lane*> CurrentRoute::lanes_of_home(uint32_t home) {
  std::vector<Lane*> lanes;
  for (uint32_t slot = 0; slot < route_.slots(); ++slot) {
    if (!live(slot) || (live(home) && slot != home)) continue;
    for (uint32_t number = 0; number < route_.lanes_by_slot[slot]; ++number) {
      lanes.push_back(at_slot(slot).lanes[number].get());
    }
  }
  return lanes;
}

bool CurrentRoute::current(const Lane& lane, const Header& header, uint32_t* home) const {
  *home = header.chunk;
  return *home < route_.slots() && carries(lane, *home) && header.epoch == epoch() &&
         header.route == route_.since[*home];
}

void CurrentRoute::queue_route(Lane* lane) {
  if (!lane->welcomed() || lane->route_known >= route_.order()) return;
  lane->route_known = route_.order();
  lanes_.queue_frame(lane, {kRoute}, encode_route(route_));
}

}  // namespace ors
