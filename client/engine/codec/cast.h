// float32 to the 16-bit wire types and back: round to nearest, ties to even; a NaN becomes the
// canonical quiet NaN of the type (bf16 0x7FC0, f16 0x7E00).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ors {

void narrow_bf16(const float* from, uint16_t* to, size_t count);
void narrow_f16(const float* from, uint16_t* to, size_t count);
void widen_bf16(const uint16_t* from, float* to, size_t count);
void widen_f16(const uint16_t* from, float* to, size_t count);

// `dtype` is kFloat16 or kBFloat16. Narrowing returns the CRC-32C of the bytes that it wrote.
uint32_t narrow_crc32c(uint8_t dtype, const float* from, void* to, size_t count);
void widen(uint8_t dtype, const void* from, float* to, size_t count);

}  // namespace ors
