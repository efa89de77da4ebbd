// Which slots of a job are live, and which lane owns each chunk (PROTOCOL.md, sections 6 and 11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ors {

// From this epoch on, the rank is out of the run.
struct Loss {
  uint32_t epoch = 0;
  uint32_t rank = 0;
  bool operator==(const Loss& other) const { return epoch == other.epoch && rank == other.rank; }
};

struct Route {
  uint32_t number = 0;
  std::vector<Loss> lost;               // the view: all other ranks are in; ascending
  std::vector<uint32_t> since;          // by slot: the route that last moved its streams
  std::vector<uint32_t> live;           // by slot: 0 or 1
  std::vector<uint32_t> lanes_by_slot;  // at least 1

  static Route first(std::vector<uint32_t> lanes_by_slot);

  // The epoch of the view to which the route belongs. Routes are ordered by epoch and number.
  uint32_t epoch() const { return lost.empty() ? 0 : lost.back().epoch; }
  std::pair<uint32_t, uint32_t> order() const { return {epoch(), number}; }
  bool is_out(uint32_t rank) const;
  uint32_t lowest_rank() const;  // of the view: it makes the routes
  // Whether the view is that of `before`, or a later one of the same run.
  bool continues(const Route& before) const;

  size_t slots() const { return since.size(); }
  uint32_t live_slots() const;

  // Returns the next route, in which `slot` is put out, taken in, or restarted in place. The
  // streams of all dead slots move as well: either the live slots share them differently, or the
  // restarted slot has lost its part of them.
  Route with(uint32_t slot, bool live_now, uint32_t lanes) const;
  // Returns the first route of the view without these ranks. It moves every stream.
  Route without(const std::vector<uint32_t>& ranks, uint32_t epoch) const;
};

// Returns nullptr, or the rule that the lists break. A route without lists is the first route.
const char* check_route(const Route& route);

// Returns nullptr, or the rule that the weights break.
const char* check_weights(const std::vector<uint32_t>& weights, size_t reducers);

// Home slot of a chunk, and the lane that owns the chunk now.
struct Place {
  uint32_t home = 0;
  uint32_t slot = 0;
  uint32_t lane = 0;
  uint32_t stream = 0;  // index of the stream, below Owners::streams()
};

// Deals the numbers 0, 1, 2, ... to parties: the party of weight w gets w of each period. Of the
// numbers below n, each party has its exact share, give or take less than one. Parties of equal
// weight take turns. (P-fairness: S. Baruah et al., Proportionate progress, 1996.)
class Deal {
 public:
  struct Turn {
    uint32_t party = 0;
    uint64_t turn = 0;  // how many earlier numbers the party has
  };

  Deal() = default;
  explicit Deal(std::vector<uint32_t> weights);

  Turn at(uint64_t number) const;

 private:
  void deal();

  std::vector<uint32_t> weights_;
  uint64_t period_ = 1;
  std::vector<Turn> period_turns_;  // by number, in one period; empty if all weights are equal
};

class Owners {
 public:
  Owners() = default;
  // `weights` by slot; none: all slots are equal.
  explicit Owners(const Route& route, const std::vector<uint32_t>& weights = {});

  Place place(uint64_t key, uint32_t chunk) const;
  uint32_t home(uint64_t key, uint32_t chunk) const;
  uint32_t streams() const { return total_ * (1 + dead_); }

 private:
  std::vector<uint32_t> lanes_;
  std::vector<uint32_t> first_;       // by slot: number of lanes of all slots before
  std::vector<uint32_t> live_;        // by slot
  std::vector<uint32_t> group_;       // by slot: 0 if live; dead slots count 1, 2, ...
  std::vector<uint32_t> live_slots_;  // ascending
  Deal homes_;
  Deal heirs_;  // of a dead home's chunks: the live slots
  uint32_t total_ = 0;
  uint32_t dead_ = 0;
};

}  // namespace ors
