#include "protocol/chunk_copy.h"

#include <cstring>

#include "codec/cast.h"
#include "codec/crc.h"

namespace ors {

ChunkCopy copy_chunk(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* from,
                     uint8_t* to, Pool* pool) {
  const Descriptor& d = round.descriptor;
  const Range range = round.plan.range(chunk);
  const size_t item = d.wide ? sizeof(float) : round.plan.item_bytes();
  const bool scatters = d.collective == kReduceScatter;
  const uint64_t first = (scatters ? range.vector * round.plan.count() : 0) + range.offset;
  ChunkCopy copy;
  if (range.elements == 0 || !sends_bytes(d, round.plan, chunk, rank)) return copy;
  const uint8_t* source = from + first * item;
  copy.length = round.plan.bytes(chunk);
  copy.buffer = pool->take(copy.length);
  if (d.wide) {
    copy.crc = narrow_crc32c(d.dtype, reinterpret_cast<const float*>(source), copy.buffer->data,
                             range.elements);
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
