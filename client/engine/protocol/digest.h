// Checks that all ranks got the same results. Each rank sums a digest over a span of N rounds of
// a key; an internal all-reduce on a separate key then collects the digests of all ranks.
//
// Law: a digest does not depend on the order in which chunks and rounds finish, and the spans of
// a key are compared in order. Ranks whose rounds finish in different orders therefore agree.
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

// One span of one key. Each rank contributes a vector that is zero except for its own digest.
struct Comparison {
  uint64_t key_id = 0;
  std::string key;
  uint64_t first = 0;  // first and last round, inclusive
  uint64_t last = 0;
  uint64_t own = 0;
  std::vector<uint64_t> digests;  // by rank, after the all-reduce
};

// Returns the value that one chunk adds to its span; `crc` is the CRC of the result's bytes.
uint64_t digest_of(uint64_t key_id, uint64_t position, uint32_t crc);

// Returns nullopt if all these ranks agree, else a failure with the same text on all ranks.
std::optional<Failure> verdict_on(const Comparison& comparison, const std::vector<uint32_t>& ranks);

class Digests {
 public:
  void compare_every(uint64_t rounds) { every_ = rounds; }  // 0: never
  uint32_t every() const { return static_cast<uint32_t>(every_); }
  bool on() const { return every_ > 0; }
  bool ends_span(uint64_t round) const { return (round + 1) % every_ == 0; }

  // Adds a finished round. Call once per round.
  void add(uint64_t key_id, const std::string& key, uint64_t round, uint64_t digest);
  // Returns the next span to compare, or nullopt.
  std::optional<Comparison> next_due();

 private:
  struct Span {
    uint64_t rounds = 0;
    uint64_t sum = 0;
  };
  struct Key {
    uint64_t next = 0;  // the span to be compared next
    std::map<uint64_t, Span> open;
  };

  uint64_t every_ = 0;
  std::unordered_map<uint64_t, Key> keys_;  // of all keys since the join
  std::deque<Comparison> due_;
};

}  // namespace ors
