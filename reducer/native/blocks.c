/* Blocks: sizes, scales, seeds, and the choice of the instruction set. The loops over elements are
 * in blocks.inc. */
#include "blocks.h"

#include <string.h>

#include "blocks_codes.h"
#include "blocks_level.h"
#include "cpu.h"
#include "fp_mode.h"

static const rs_blocks_level* levels[3]; /* that this machine supports, fastest first */
static size_t level_count;
static const rs_blocks_level* level;

__attribute__((constructor)) static void choose_level(void) {
#if defined(__x86_64__)
  if (rs_cpu_has(RS_CPU_AVX512)) levels[level_count++] = &rs_blocks_avx512;
  if (rs_cpu_has(RS_CPU_AVX2)) levels[level_count++] = &rs_blocks_avx2;
#endif
  levels[level_count++] = &rs_blocks_baseline;
  rs_blocks_use(0);
}

void rs_blocks_use(size_t rank) { level = levels[rank < level_count ? rank : level_count - 1]; }

size_t rs_code_bytes(int format, size_t count) {
  return format == RS_BLOCKS_E3M0 ? (count + 1) / 2 : count;
}

size_t rs_blocks_bytes(int format, size_t count) {
  const size_t whole = count / RS_BLOCK_ELEMENTS, rest = count % RS_BLOCK_ELEMENTS;
  const size_t block = RS_SCALE_BYTES + rs_code_bytes(format, RS_BLOCK_ELEMENTS);
  return whole * block + (rest ? RS_SCALE_BYTES + rs_code_bytes(format, rest) : 0);
}

rs_scale rs_scale_of(int format, uint32_t largest) {
  static const float limits[] = {
      [RS_BLOCKS_INT8] = 127.0f, [RS_BLOCKS_E4M3FN] = 448.0f, [RS_BLOCKS_E3M0] = 1.0f};
  const float magnitude = value_of(largest), limit = limits[format];
  if (largest >= 0x7F800000) return (rs_scale){value_of(0x7FC00000), 0.0f};
  if (magnitude < 0x1p-100f) return (rs_scale){0.0f, 0.0f};
  float scale = magnitude / limit;
  /* The largest float32 divided by 127 is rounded up, and the product would be Inf. */
  if (bits_of(scale * limit) >= 0x7F800000) scale = value_of(bits_of(scale) - 1);
  return (rs_scale){scale, limit / magnitude};
}

static float decoded(int format, uint8_t code) {
  switch (format) {
    case RS_BLOCKS_INT8:
      return int8_decoded(code);
    case RS_BLOCKS_E4M3FN:
      return (code & 0x7F) == 0x7F ? value_of(0x7FC00000) : e4m3fn_decoded(code);
    default:
      return e3m0_decoded(code);
  }
}

unsigned rs_decode_any(int format, size_t count, const u8* codes, float scale, f32* out, int add) {
  unsigned not_finite = 0;
  for (size_t i = 0; i < count; ++i) {
    const float product = decoded(format, codes[i]) * scale;
    const float value = product == product ? product : value_of(0x7FC00000);
    not_finite |= (bits_of(value) & MAGNITUDE_BITS) >= 0x7F800000;
    out[i] = add ? out[i] + value : value;
  }
  return not_finite;
}

unsigned rs_quantise(int format, size_t count, const float* source, float* residual,
                     const uint64_t* seed, void* blocks) {
  const rs_fp_mode before = rs_ieee_begin();
  const unsigned not_finite =
      level->quantise(format, count, (const f32*)source, (f32*)residual, seed, blocks);
  rs_fp_set(before);
  return not_finite;
}

static unsigned dequantise(int format, size_t count, const void* blocks, float* out, int add) {
  const rs_fp_mode before = rs_ieee_begin();
  const unsigned not_finite = level->dequantise(format, count, blocks, (f32*)out, add);
  rs_fp_set(before);
  return not_finite;
}

unsigned rs_dequantise(int format, size_t count, const void* blocks, float* out) {
  return dequantise(format, count, blocks, out, 0);
}

unsigned rs_dequantise_add(int format, size_t count, const void* blocks, float* acc) {
  return dequantise(format, count, blocks, acc, 1);
}

/* The finalizer of SplitMix64. */
static uint64_t mixed_long(uint64_t h) {
  h = (h ^ (h >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  h = (h ^ (h >> 27)) * UINT64_C(0x94D049BB133111EB);
  return h ^ (h >> 31);
}

uint64_t rs_blocks_seed(uint64_t key, uint64_t round, uint32_t chunk, uint32_t rank) {
  return mixed_long(mixed_long(mixed_long(key) ^ round) ^ ((uint64_t)chunk << 16 | rank));
}
