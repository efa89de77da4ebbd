// Where chunks go: the route that is in force, and which lanes carry which stream under it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocol/lanes.h"
#include "protocol/route.h"

namespace ors {

class Routing {
 public:
  explicit Routing(Lanes* lanes) : lanes_(*lanes) {}

  // At the join, once each reducer has its slot.
  void begin(std::vector<uint32_t> lanes_by_slot);
  void take(const Route& route);

  const Route& route() const { return route_; }
  const Owners& owners() const { return owners_; }

  bool live(const Reducer& reducer) const { return route_.live[reducer.slot] != 0; }
  bool live(uint32_t slot) const { return route_.live[slot] != 0; }
  Reducer& at_slot(uint32_t slot) { return lanes_.reducers()[by_slot_[slot]]; }
  // The lanes of the reducer that the route counts on; 0 where its slot is out.
  uint32_t lanes_in_use(const Reducer& reducer) const {
    return live(reducer) ? route_.lanes_by_slot[reducer.slot] : 0;
  }

  // The lane because of which this worker suspects a live slot, if it does.
  const Lane* suspicious(const Reducer& reducer) const;

  // Whether the lane has the stream of this home slot.
  bool carries(const Lane& lane, uint32_t home) const;
  std::vector<Lane*> lanes_of_home(uint32_t home);
  // Whether a frame is of a stream that is still where it was; and of which home slot.
  bool current(const Lane& lane, const Header& header, uint32_t* home) const;

  // Before the first frame under a route that the lane does not know.
  void tell(Lane* lane);

 private:
  Lanes& lanes_;
  Route route_;
  Owners owners_;
  std::vector<uint32_t> by_slot_;  // our own number of the reducer
};

}  // namespace ors
