/* Quantised tensors: blocks of 256 float32, each a scale and short codes. Used by the kernels, the
 * client's engine and the NCCL plugin (PROTOCOL.md, section 5, has the formats).
 *
 * Law: the same operands give the same bits on every machine. Build with -ffp-contract=off and
 * without -ffast-math, or the bits differ.
 *
 * Pointers need no alignment. Arrays overlap no other array. Thread-safe, except rs_blocks_use. */
#ifndef RS_BLOCKS_H
#define RS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The format of a dtype is (dtype - 13) % 3. */
enum { RS_BLOCKS_INT8 = 0, RS_BLOCKS_E4M3FN = 1, RS_BLOCKS_E3M0 = 2, RS_BLOCK_ELEMENTS = 256 };

/* Bytes of `count` elements. Elements that begin at a multiple of RS_BLOCK_ELEMENTS begin at
 * rs_blocks_bytes(format, start). */
size_t rs_blocks_bytes(int format, size_t count);

/* Quantises `count` float32. A block with an element that is not finite becomes NaN as a whole.
 * Rounds to nearest if `seed` is NULL, else stochastically: element i of the array rounds up with
 * the right probability, by random bits that depend on *seed and i alone.
 *
 * `residual`: NULL, or `count` float32 that are added to the source. After the call they hold what
 * the blocks lack of that sum. The residual of a block that is not finite does not change.
 *
 * Returns 1 if a block is not finite, else 0. */
unsigned rs_quantise(int format, size_t count, const float* source, float* residual,
                     const uint64_t* seed, void* blocks);

/* The values as float32, each rounded once; a NaN is the canonical quiet NaN. Returns 1 if a value
 * is not finite, else 0. */
unsigned rs_dequantise(int format, size_t count, const void* blocks, float* out);

/* Adds the values to `acc`. Returns 1 if a value (not: a sum) is not finite, else 0. */
unsigned rs_dequantise_add(int format, size_t count, const void* blocks, float* acc);

/* The seed for the contribution of a rank to a chunk of a round. */
uint64_t rs_blocks_seed(uint64_t key, uint64_t round, uint32_t chunk, uint32_t rank);

/* For tests. 0: the fastest instruction set of this machine, 1: the next, ...; beyond the last: the
 * last. Not to be called while another thread computes. */
void rs_blocks_use(size_t rank);

#ifdef __cplusplus
}
#endif
#endif
