// Whether all ranks were given the same results: each adds up a digest of N rounds of a key, and an
// all-reduce of the engine's own, on a key of its own, brings the digests of all ranks together.
//
// Law: a digest does not depend on the order in which chunks and rounds come, and the windows of a
// key are compared in order, so that ranks whose rounds end in different orders compare alike.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/operation.h"

namespace ors {

// One window of one key. Each rank contributes its digest at its own place among zeros.
struct Comparison {
  uint64_t key_id = 0;
  std::string key;
  uint64_t first = 0;  // rounds, both included
  uint64_t last = 0;
  uint64_t own = 0;
  std::vector<uint64_t> digests;  // by rank, once it is compared
};

// What one chunk adds to its window; `crc` is of the result's bytes.
uint64_t digest_of(uint64_t key_id, uint64_t position, uint32_t crc);

// nullopt where all ranks agree; else a text that is the same on all ranks.
std::optional<Failure> verdict_on(const Comparison& comparison);

class Digests {
 public:
  void compare_every(uint64_t rounds) { every_ = rounds; }  // 0: never
  bool on() const { return every_ > 0; }
  bool ends_window(uint64_t round) const { return (round + 1) % every_ == 0; }

  // A round is over. Each round of a key comes once.
  void add(uint64_t key_id, const std::string& key, uint64_t round, uint64_t digest);
  // The next window that is to be compared.
  std::optional<Comparison> next_due();

 private:
  struct Window {
    uint64_t rounds = 0;
    uint64_t sum = 0;
  };
  struct Key {
    uint64_t next = 0;  // the window to be compared next
    std::map<uint64_t, Window> open;
  };

  uint64_t every_ = 0;
  std::unordered_map<uint64_t, Key> keys_;  // of all keys since the join
  std::deque<Comparison> due_;
};

}  // namespace ors
