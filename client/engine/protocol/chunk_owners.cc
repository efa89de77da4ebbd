#include "protocol/chunk_owners.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "codec/wire.h"

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

bool Route::is_out(uint32_t rank) const {
  return std::any_of(lost.begin(), lost.end(),
                     [rank](const Loss& loss) { return loss.rank == rank; });
}

uint32_t Route::lowest_rank() const {
  uint32_t rank = 0;
  while (is_out(rank)) ++rank;
  return rank;
}

bool Route::continues(const Route& before) const {
  return lost.size() >= before.lost.size() &&
         std::equal(before.lost.begin(), before.lost.end(), lost.begin());
}

Route Route::without(const std::vector<uint32_t>& ranks, uint32_t epoch) const {
  Route next = *this;
  next.number = number + 1;
  std::fill(next.since.begin(), next.since.end(), next.number);
  for (const uint32_t rank : ranks) {
    if (!next.is_out(rank)) next.lost.push_back({epoch, rank});
  }
  std::sort(next.lost.begin() + static_cast<ptrdiff_t>(lost.size()), next.lost.end(),
            [](const Loss& a, const Loss& b) { return a.rank < b.rank; });
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

const char* check_weights(const std::vector<uint32_t>& weights, size_t reducers) {
  if (weights.empty()) return nullptr;
  if (weights.size() != reducers) return "the weights are not one for each reducer";
  if (weights.size() > kMaxWeighted) return "weights are for 512 reducers at most";
  if (*std::min_element(weights.begin(), weights.end()) == 0) return "a weight of 0";
  if (std::accumulate(weights.begin(), weights.end(), uint64_t{0}) > kMaxWeights) {
    return "the sum of the weights is above 4096";
  }
  return nullptr;
}

Deal::Deal(std::vector<uint32_t> weights) : weights_(std::move(weights)) {
  uint32_t common = 0;
  for (const uint32_t weight : weights_) common = std::gcd(common, weight);
  for (uint32_t& weight : weights_) weight /= common;
  period_ = std::accumulate(weights_.begin(), weights_.end(), uint64_t{0});
  if (period_ > weights_.size()) deal();
}

Deal::Turn Deal::at(uint64_t number) const {
  const uint64_t periods = number / period_;
  if (period_turns_.empty()) return {static_cast<uint32_t>(number % period_), periods};
  const Turn& first = period_turns_[number % period_];
  return {first.party, periods * weights_[first.party] + first.turn};
}

// The j-th number of a party of share s lies in [j/s, (j+1)/s): of all parties whose interval has
// begun, the one whose interval ends first has the next number.
void Deal::deal() {
  using Entry = std::pair<uint64_t, uint32_t>;
  using Heap = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;
  Heap begins;
  Heap ends;
  std::vector<uint64_t> had(weights_.size(), 0);
  for (uint32_t party = 0; party < weights_.size(); ++party) begins.emplace(0, party);
  for (uint64_t number = 0; number < period_; ++number) {
    for (; !begins.empty() && begins.top().first <= number; begins.pop()) {
      const uint32_t party = begins.top().second;
      const uint64_t weight = weights_[party];
      ends.emplace(((had[party] + 1) * period_ + weight - 1) / weight, party);
    }
    const uint32_t party = ends.top().second;
    ends.pop();
    period_turns_.push_back({party, had[party]++});
    begins.emplace(had[party] * period_ / weights_[party], party);
  }
}

Owners::Owners(const Route& route, const std::vector<uint32_t>& weights)
    : lanes_(route.lanes_by_slot), live_(route.live) {
  const std::vector<uint32_t> all =
      weights.empty() ? std::vector<uint32_t>(live_.size(), 1) : weights;
  std::vector<uint32_t> of_live;
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    first_.push_back(total_);
    total_ += lanes_[slot];
    group_.push_back(live_[slot] != 0 ? 0 : ++dead_);
    if (live_[slot] == 0) continue;
    live_slots_.push_back(slot);
    of_live.push_back(all[slot]);
  }
  homes_ = Deal(all);
  heirs_ = Deal(std::move(of_live));
}

uint32_t Owners::home(uint64_t key, uint32_t chunk) const {
  return homes_.at((key & 0xFFFFFFFFu) + chunk).party;
}

Place Owners::place(uint64_t key, uint32_t chunk) const {
  Deal::Turn dealt = homes_.at((key & 0xFFFFFFFFu) + chunk);
  Place place;
  place.home = dealt.party;
  place.slot = place.home;
  if (live_[place.home] == 0) {
    dealt = heirs_.at(dealt.turn);
    place.slot = live_slots_[dealt.party];
  }
  place.lane = static_cast<uint32_t>(dealt.turn % lanes_[place.slot]);
  place.stream = total_ * group_[place.home] + first_[place.slot] + place.lane;
  return place;
}

}  // namespace ors
