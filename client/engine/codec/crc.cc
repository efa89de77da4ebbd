#include "codec/crc.h"

#include <cstring>

#include "native/crc32c.h"

namespace ors {

uint32_t crc32c(const void* data, size_t size, uint32_t value) {
  return rs_crc32c(value, data, size);
}

uint32_t copy_crc32c(void* to, const void* from, size_t size, uint32_t value) {
  constexpr size_t kBlock = 12 * 1024;  // both sides fit in 32 KiB of L1
  auto* out = static_cast<uint8_t*>(to);
  auto* in = static_cast<const uint8_t*>(from);
  while (size > 0) {
    const size_t part = size < kBlock ? size : kBlock;
    std::memcpy(out, in, part);
    // Checksum the copy, not the source: the copy is sent, and the owner may change the source now.
    value = crc32c(out, part, value);
    out += part;
    in += part;
    size -= part;
  }
  return value;
}

}  // namespace ors
