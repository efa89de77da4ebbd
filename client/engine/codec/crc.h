// CRC-32C (Castagnoli), computed by reducer/native/crc32c.c.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ors {

// `value` is the CRC of the preceding bytes, so that a payload can be processed in pieces.
uint32_t crc32c(const void* data, size_t size, uint32_t value = 0);

// Copies and returns the CRC, block by block so that each block stays in the L1 cache.
uint32_t copy_crc32c(void* to, const void* from, size_t size, uint32_t value = 0);

}  // namespace ors
