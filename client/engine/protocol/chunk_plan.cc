#include "protocol/chunk_plan.h"

#include <algorithm>

namespace ors {

const char* check_chunk_table(const ChunkTable& table) {
  if (table.empty()) return "the chunk table has no row";
  if (table.size() > kMaxChunkTableRows) return "the chunk table has more than 16 rows";
  if (table.front().least_round_bytes != 0) return "the chunk table does not begin at 0 bytes";
  for (size_t i = 0; i < table.size(); ++i) {
    const uint32_t bytes = table[i].chunk_bytes;
    if (bytes == 0 || bytes % 64 != 0) return "a chunk size that is not a multiple of 64 bytes";
    if (bytes > kMaxChunkBytes) return "a chunk size above 4 MiB";
    if (i > 0 && table[i].least_round_bytes <= table[i - 1].least_round_bytes) {
      return "the rows of the chunk table do not ascend";
    }
  }
  return nullptr;
}

std::optional<ChunkPlan> ChunkPlan::make(const Descriptor& round, uint32_t world_size,
                                         const ChunkTable& table, std::string* why) {
  constexpr uint64_t kMaxVectorBytes = uint64_t{1} << 50;  // keeps every product below 2^64
  ChunkPlan plan;
  plan.sent_ = contribution_layout(round.dtype);
  plan.received_ = result_layout(round.dtype);
  plan.count_ = round.count;
  if (round.collective == kAllGather || round.collective == kReduceScatter) {
    plan.vectors_ = world_size;
  }
  const uint64_t unit = plan.sent_.unit;
  const uint64_t unit_bytes = plan.larger(unit);
  if (round.count / unit > kMaxVectorBytes / unit_bytes) {
    *why = "a round of " + std::to_string(round.count) + " elements is more than 2^50 bytes";
    return std::nullopt;
  }
  const uint64_t round_bytes = plan.larger(round.count) * plan.vectors_;
  uint64_t chunk_bytes = table.front().chunk_bytes;
  for (const ChunkRow& row : table) {
    if (row.least_round_bytes <= round_bytes) chunk_bytes = row.chunk_bytes;
  }
  plan.chunk_elements_ = std::max<uint64_t>(1, chunk_bytes / unit_bytes) * unit;
  const uint64_t per_vector =
      std::max<uint64_t>(1, (round.count + plan.chunk_elements_ - 1) / plan.chunk_elements_);
  if (per_vector > kMaxChunks / plan.vectors_) {
    *why = "a round of " + std::to_string(round_bytes) + " bytes has more than 2^24 chunks of " +
           std::to_string(chunk_bytes) + ": use larger chunks (chunk_table of rank 0)";
    return std::nullopt;
  }
  plan.per_vector_ = static_cast<uint32_t>(per_vector);
  return plan;
}

Range ChunkPlan::range(uint32_t chunk) const {
  const uint64_t offset = chunk / vectors_ * chunk_elements_;
  return {chunk % vectors_, offset, std::min(chunk_elements_, count_ - offset)};
}

uint64_t ChunkPlan::larger(uint64_t elements) const {
  return std::max(sent_.bytes(elements), received_.bytes(elements));
}

uint32_t ChunkPlan::contribution_bytes(uint32_t chunk) const {
  return static_cast<uint32_t>(sent_.bytes(range(chunk).elements));
}

uint32_t ChunkPlan::result_bytes(uint32_t chunk) const {
  return static_cast<uint32_t>(received_.bytes(range(chunk).elements));
}

uint64_t ChunkPlan::cost(uint32_t chunk) const {
  return std::max(larger(range(chunk).elements), kMinChunkCost);
}

uint32_t caller_item_bytes(const Descriptor& d) { return d.wide ? 4 : item_size(d.dtype); }

bool sends_bytes(const Descriptor& round, const ChunkPlan& plan, uint32_t chunk, uint32_t rank) {
  switch (round.collective) {
    case kBroadcast:
      return rank == round.root;
    case kAllGather:
      return chunk % plan.vectors() == rank;
    case kBarrier:
      return false;
    default:
      return true;
  }
}

bool gets_bytes(const Descriptor& round, const ChunkPlan& plan, uint32_t chunk, uint32_t rank) {
  switch (round.collective) {
    case kBroadcast:
      return rank != round.root;
    case kAllGather:
      return chunk % plan.vectors() != rank;
    case kReduceScatter:
      return chunk % plan.vectors() == rank;
    case kBarrier:
      return false;
    default:
      return true;
  }
}

bool shrinks(uint8_t collective) { return collective == kAllReduce || collective == kBarrier; }

bool moves_only(uint8_t collective) { return collective == kBroadcast || collective == kAllGather; }

}  // namespace ors
