// Hash map from key id to next round: all that is kept of a key that is not in use. An entry takes
// 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ors {

class KeyMap {
 public:
  // Returns 0 for an unknown key.
  uint64_t get(uint64_t key) const {
    if (slots_.empty()) return 0;
    const Slot& slot = slots_[find(key)];
    return slot.value;
  }

  // `round` must be above 0; 0 marks a free slot.
  void put(uint64_t key, uint64_t round) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    Slot& slot = slots_[find(key)];
    if (slot.value == 0) ++size_;
    slot = {key, round};
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t value = 0;
  };

  size_t find(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = key & mask;  // ids are hashes already
    while (slots_[at].value != 0 && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value != 0) slots_[find(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace ors
