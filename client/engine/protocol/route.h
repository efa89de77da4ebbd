// Which slots of a job are live, and which lane owns each chunk (PROTOCOL.md, sections 6 and 11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ors {

struct Route {
  uint32_t number = 0;
  std::vector<uint32_t> since;          // by slot, as the other lists
  std::vector<uint32_t> live;           // 0 or 1
  std::vector<uint32_t> lanes_by_slot;  // 1 at least

  static Route first(std::vector<uint32_t> lanes_by_slot);

  size_t slots() const { return since.size(); }
  uint32_t live_slots() const;

  // The next route: `slot` is put out, taken in, or has begun anew where it was. The streams of the
  // slots that stay dead move, too: the live slots share them in another way, or one of these has
  // lost what it knew of them.
  Route with(uint32_t slot, bool live_now, uint32_t lanes) const;
};

// nullptr, or which rule the lists break. A route without lists is the first one.
const char* check_route(const Route& route);

// Where a chunk is at home, and the lane that has it.
struct Place {
  uint32_t home = 0;
  uint32_t slot = 0;
  uint32_t lane = 0;
  uint32_t stream = 0;  // its number among the streams of all lanes: below Owners::streams()
};

class Owners {
 public:
  Owners() = default;
  explicit Owners(const Route& route);

  Place place(uint64_t key, uint32_t chunk) const;
  uint32_t home(uint64_t key, uint32_t chunk) const;
  uint32_t streams() const { return total_ * (1 + dead_); }

 private:
  std::vector<uint32_t> lanes_;
  std::vector<uint32_t> first_;       // by slot: the lanes of all slots before it
  std::vector<uint32_t> live_;        // by slot
  std::vector<uint32_t> group_;       // by slot: 0 for a live one, 1, 2 ... for the dead ones
  std::vector<uint32_t> live_slots_;  // ascending
  uint32_t total_ = 0;
  uint32_t dead_ = 0;
};

}  // namespace ors
