// float32 to the narrower wire types and back. To 16 bits: round to nearest, ties to even; a NaN
// becomes the canonical quiet NaN of the type (bf16 0x7FC0, f16 0x7E00). blocks.h has the blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ors {

void narrow_bf16(const float* from, uint16_t* to, size_t count);
void narrow_f16(const float* from, uint16_t* to, size_t count);
void widen_bf16(const uint16_t* from, float* to, size_t count);
void widen_f16(const uint16_t* from, float* to, size_t count);

// Both return the CRC-32C of the bytes that they wrote. `dtype` is kFloat16 or kBFloat16.
uint32_t narrow_crc32c(uint8_t dtype, const float* from, void* to, size_t count);
// `dtype` is one of blocks. `residual`, `seed`: null, or as for rs_quantise.
uint32_t quantise_crc32c(uint8_t dtype, const float* from, float* residual, const uint64_t* seed,
                         void* to, size_t count);
// `from`: a result of the dtype.
void widen(uint8_t dtype, const void* from, float* to, size_t count);

}  // namespace ors
