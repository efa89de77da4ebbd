/* Private to the blocks: what blocks.c and the loops of each instruction set share. */
#ifndef RS_BLOCKS_LEVEL_H
#define RS_BLOCKS_LEVEL_H

#include <stddef.h>
#include <stdint.h>

#include "blocks.h"

#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef float f32 UNALIGNED;
typedef uint32_t u32 UNALIGNED;
typedef uint8_t u8 __attribute__((may_alias));

enum { RS_SCALE_BYTES = sizeof(float) };

/* The functions of blocks.h for one instruction set, in the floating-point mode of the caller. */
typedef struct {
  unsigned (*quantise)(int format, size_t count, const f32* source, f32* residual,
                       const uint64_t* seed, u8* blocks);
  unsigned (*dequantise)(int format, size_t count, const u8* blocks, f32* out, int add);
} rs_blocks_level;

extern const rs_blocks_level rs_blocks_baseline;
#if defined(__x86_64__)
extern const rs_blocks_level rs_blocks_avx2;
extern const rs_blocks_level rs_blocks_avx512;
#endif

/* inverse is 0 if all codes are 0: then scale is 0, or NaN for a block that is not finite. */
typedef struct {
  float scale, inverse;
} rs_scale;

/* `largest`: the bits of the largest magnitude of a block. */
rs_scale rs_scale_of(int format, uint32_t largest);

size_t rs_code_bytes(int format, size_t count);

/* Decodes `count` codes, one a byte, whatever they and the scale are. Returns 1 if a value is not
 * finite, else 0. */
unsigned rs_decode_any(int format, size_t count, const u8* codes, float scale, f32* out, int add);

#endif
