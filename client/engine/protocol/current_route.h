// The route in force, and the lanes that carry each stream under this route.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/chunk_owners.h"
#include "protocol/lanes.h"

namespace ors {

class CurrentRoute {
 public:
  explicit CurrentRoute(Lanes* lanes) : lanes_(*lanes) {}

  // At the join, once each reducer has its slot.
  void begin(std::vector<uint32_t> lanes_by_slot, const std::vector<uint32_t>& weights);
  void take(const Route& route);
  void exchange_slots(Reducer* a, Reducer* b);  // of two reducers that are out

  const Route& route() const { return route_; }
  uint32_t epoch() const { return route_.epoch(); }
  // Whether this rank makes the routes of the view.
  bool made_by(uint32_t rank) const { return route_.lowest_rank() == rank; }
  const Owners& owners() const { return owners_; }
  const std::vector<uint32_t>& weights() const { return weights_; }
  // Returns `size` for the heaviest slots, and less for others, in proportion to their weights.
  uint64_t part_of(uint32_t slot, uint64_t size) const {
    return weights_.empty() ? size : size * weights_[slot] / heaviest_;
  }

  bool live(const Reducer& reducer) const { return route_.live[reducer.slot] != 0; }
  bool live(uint32_t slot) const { return route_.live[slot] != 0; }
  const Reducer& at_slot(uint32_t slot) const { return lanes_.reducers()[by_slot_[slot]]; }
  Reducer& at_slot(uint32_t slot) { return lanes_.reducers()[by_slot_[slot]]; }
  // Returns the number of the reducer's lanes that the route uses; 0 if its slot is out.
  uint32_t lanes_in_use(const Reducer& reducer) const {
    return live(reducer) ? route_.lanes_by_slot[reducer.slot] : 0;
  }

  // Returns the lane for which this worker suspects the reducer's live slot; null if it does not.
  const Lane* suspicious(const Reducer& reducer) const;

  // Whether the lane owns a part of the streams of this home slot.
  bool carries(const Lane& lane, uint32_t home) const;
  std::vector<Lane*> lanes_of_home(uint32_t home);
  // Whether a frame's stream has not moved since the frame was sent. Sets *home to its home slot.
  bool current(const Lane& lane, const Header& header, uint32_t* home) const;

  // Queues ROUTE if the lane does not know the route in force. Must precede frames of this route.
  void queue_route(Lane* lane);

 private:
  Lanes& lanes_;
  Route route_;
  std::vector<uint32_t> weights_;  // by slot; none: all slots are equal
  uint32_t heaviest_ = 1;
  Owners owners_;
  std::vector<uint32_t> by_slot_;  // index in Lanes::reducers(), by slot
};

}  // namespace ors
