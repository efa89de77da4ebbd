#include "codec/cast.h"

#include <cstring>

#include "codec/crc.h"
#include "codec/layout.h"
#include "codec/wire.h"
#include "native/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ors {
namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint16_t to_bf16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

// Scales by powers of two so that a float addition does the rounding. Requires the default rounding
// mode, round to nearest even.
inline uint16_t to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7F800000u) return 0x7E00u;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // from 65536 up
  if (magnitude < 0x38800000u) {  // subnormal in f16: the last place is 2^-24
    const float shifted = float_of(magnitude) + float_of(0x3F000000u);  // + 0.5
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3F000000u));
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return static_cast<uint16_t>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
}

inline float from_f16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
}

void narrow_f16_portable(const float* from, uint16_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_f16(from[i]);
}

void widen_f16_portable(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = from_f16(from[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void narrow_f16_f16c(const float* from, uint16_t* to,
                                                         size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 x = _mm256_loadu_ps(from + i);
    if (_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0) {
      narrow_f16_portable(from + i, to + i, 8);  // the instruction keeps NaN payloads
      continue;
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  narrow_f16_portable(from + i, to + i, count - i);
}

__attribute__((target("avx,f16c"))) void widen_f16_f16c(const uint16_t* from, float* to,
                                                        size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(x));
  }
  widen_f16_portable(from + i, to + i, count - i);
}

__attribute__((target("avx2"))) void narrow_bf16_avx2(const float* from, uint16_t* to,
                                                      size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_bf16(bits_of(from[i]));
}

bool has_avx2() {
  static const bool has = rs_cpu_has(RS_CPU_AVX2);
  return has;
}
#endif

}  // namespace

void narrow_bf16(const float* from, uint16_t* to, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return narrow_bf16_avx2(from, to, count);
#endif
  for (size_t i = 0; i < count; ++i) to[i] = to_bf16(bits_of(from[i]));
}

void narrow_f16(const float* from, uint16_t* to, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return narrow_f16_f16c(from, to, count);
#endif
  narrow_f16_portable(from, to, count);
}

void widen_bf16(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
}

void widen_f16(const uint16_t* from, float* to, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return widen_f16_f16c(from, to, count);
#endif
  widen_f16_portable(from, to, count);
}

uint32_t narrow_crc32c(uint8_t dtype, const float* from, void* to, size_t count) {
  constexpr size_t kBlock = 4096;  // elements: the 8 KiB written are in L1 when they are checked
  auto* out = static_cast<uint16_t*>(to);
  uint32_t crc = 0;
  while (count > 0) {
    const size_t part = count < kBlock ? count : kBlock;
    if (dtype == kFloat16) {
      narrow_f16(from, out, part);
    } else {
      narrow_bf16(from, out, part);
    }
    crc = crc32c(out, part * sizeof *out, crc);
    from += part;
    out += part;
    count -= part;
  }
  return crc;
}

uint32_t quantise_crc32c(uint8_t dtype, const float* from, float* residual, const uint64_t* seed,
                         void* to, size_t count) {
  rs_quantise(block_format(dtype), count, from, residual, seed, to);
  return crc32c(to, contribution_layout(dtype).bytes(count));
}

void widen(uint8_t dtype, const void* from, float* to, size_t count) {
  if (has_block_results(dtype)) {
    rs_dequantise(block_format(dtype), count, from, to);
    return;
  }
  const auto* in = static_cast<const uint16_t*>(from);
  if (dtype == kFloat16) {
    widen_f16(in, to, count);
  } else {
    widen_bf16(in, to, count);
  }
}

}  // namespace ors
