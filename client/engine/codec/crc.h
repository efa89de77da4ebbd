// CRC-32C (Castagnoli), by the processor's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ors {

// `value` is the CRC of the bytes before these, so a payload may be fed in pieces.
uint32_t crc32c(const void* data, size_t size, uint32_t value = 0);

// Copies and checks in one pass over blocks that stay in the first cache.
uint32_t copy_crc32c(void* to, const void* from, size_t size, uint32_t value = 0);

// The table version, which every other version must equal.
uint32_t crc32c_portable(const void* data, size_t size, uint32_t value = 0);

}  // namespace ors
