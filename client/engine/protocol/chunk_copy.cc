#include "protocol/chunk_copy.h"

#include <cstring>

#include "codec/cast.h"
#include "codec/crc.h"

namespace ors {

ChunkCopy copy_chunk(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* from,
                     uint8_t* to, float* residual, Pool* pool) {
  const Descriptor& d = round.descriptor;
  const Range range = round.plan.range(chunk);
  const size_t item = caller_item_bytes(d);
  const bool scatters = d.collective == kReduceScatter;
  const uint64_t first = (scatters ? range.vector * round.plan.count() : 0) + range.offset;
  ChunkCopy copy;
  if (range.elements == 0 || !sends_bytes(d, round.plan, chunk, rank)) return copy;
  const uint8_t* source = from + first * item;
  copy.length = round.plan.contribution_bytes(chunk);
  copy.buffer = pool->take(copy.length);
  const auto* floats = reinterpret_cast<const float*>(source);
  if (is_blocks(d.dtype)) {
    const uint64_t seed = rs_blocks_seed(round.key_id, round.number, chunk, rank);
    copy.crc =
        quantise_crc32c(d.dtype, floats, residual == nullptr ? nullptr : residual + first,
                        round.stochastic ? &seed : nullptr, copy.buffer->data, range.elements);
  } else if (d.wide) {
    copy.crc = narrow_crc32c(d.dtype, floats, copy.buffer->data, range.elements);
  } else {
    copy.crc = copy_crc32c(copy.buffer->data, source, copy.length);
  }
  if (moves_only(d.collective) && to != nullptr) {  // no lane sends these back
    const uint64_t start = d.collective == kAllGather ? range.vector * round.plan.count() : 0;
    uint8_t* own = to + (start + range.offset) * item;
    if (d.wide) {  // rounded to the 16-bit type, as on the other ranks
      widen(d.dtype, copy.buffer->data, reinterpret_cast<float*>(own), range.elements);
    } else {
      std::memcpy(own, copy.buffer->data, copy.length);
    }
  }
  return copy;
}

}  // namespace ors
