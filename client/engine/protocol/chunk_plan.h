// Divides a round into chunks (PROTOCOL.md, section 6). chunk_owners.h says which lane owns each
// chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/layout.h"
#include "codec/wire.h"

namespace ors {

struct ChunkRow {
  uint64_t least_round_bytes = 0;
  uint32_t chunk_bytes = 0;
  bool operator==(const ChunkRow& other) const {
    return least_round_bytes == other.least_round_bytes && chunk_bytes == other.chunk_bytes;
  }
};
using ChunkTable = std::vector<ChunkRow>;

// Returns nullptr, or the rule that the table breaks.
const char* check_chunk_table(const ChunkTable& table);

// The parameters of a round that must be the same on all ranks.
struct Descriptor {
  uint8_t collective = 0;
  uint8_t op = 0;
  uint8_t dtype = 0;
  bool wide = false;  // the caller's tensor is float32, sent in the 16 bits or blocks of `dtype`
  uint64_t count = 0;
  uint16_t root = 0;
};

// Size in bytes of an element of the caller's tensor.
uint32_t caller_item_bytes(const Descriptor& round);

// A chunk's elements, counted from the start of the whole round (vector x count + offset).
struct Range {
  uint32_t vector = 0;
  uint64_t offset = 0;  // within the vector
  uint64_t elements = 0;
};

class ChunkPlan {
 public:
  // Returns nullopt and sets *why if the round would have too many chunks or bytes.
  static std::optional<ChunkPlan> make(const Descriptor& round, uint32_t world_size,
                                       const ChunkTable& table, std::string* why);

  uint32_t chunks() const { return vectors_ * per_vector_; }
  uint32_t vectors() const { return vectors_; }
  uint64_t count() const { return count_; }
  Range range(uint32_t chunk) const;
  uint32_t contribution_bytes(uint32_t chunk) const;
  uint32_t result_bytes(uint32_t chunk) const;
  uint64_t cost(uint32_t chunk) const;  // credit that the chunk uses; the same for empty frames
  // Of all chunks but the last of a vector: the larger of a contribution and of the result.
  uint64_t chunk_bytes() const { return larger(chunk_elements_); }
  // Bytes that a rank contributes to one vector.
  uint64_t vector_bytes() const { return sent_.bytes(count_); }

 private:
  uint64_t larger(uint64_t elements) const;

  uint32_t vectors_ = 1;
  uint32_t per_vector_ = 1;
  Layout sent_;      // of contributions
  Layout received_;  // of results
  uint64_t count_ = 0;
  uint64_t chunk_elements_ = 1;
};

// Whether this rank sends bytes in the chunk's contribution, and whether its result has bytes.
bool sends_bytes(const Descriptor& round, const ChunkPlan& plan, uint32_t chunk, uint32_t rank);
bool gets_bytes(const Descriptor& round, const ChunkPlan& plan, uint32_t chunk, uint32_t rank);

// Whether the collective sums nothing.
bool moves_only(uint8_t collective);
// Whether rounds of the collective go on without lost ranks: no part of them belongs to one rank.
bool shrinks(uint8_t collective);

}  // namespace ors
