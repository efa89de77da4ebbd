/* Private to the kernels: the table of loops that loops.inc fills for each instruction set. */
#ifndef RS_LOOPS_H
#define RS_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Maximum number of elements per call of a loop. The widest accumulator block is 16 KiB, so the
 * block and the operand stay in the L1 cache. */
#define RS_BLOCK 2048

/* Returns flags. RS_NONFINITE from widen, begin or step: `from` is not finite, or, if the entry has
 * an inspect, `from` may be not finite. RS_NONFINITE from round: `to` is not finite. */
typedef unsigned rs_loop(void* restrict to, const void* restrict from, size_t count);

enum { RS_BEGAN_NONFINITE = 1 << 8 }; /* from begin: `to` was not finite before the call */

typedef struct {
  uint8_t item_size, acc_item_size; /* of a part, 0 for blocks; of the accumulator */
  rs_loop* widen;                   /* wire to accumulator */
  rs_loop* begin;                   /* as step, but acc holds a contribution and is checked, too */
  rs_loop* step;                    /* acc = acc op part */
  unsigned (*inspect)(const void* part, size_t count); /* RS_NONFINITE or 0; may be NULL */
  void (*divide)(void* acc, uint64_t world, size_t count);
  rs_loop* round; /* accumulator to wire */
} rs_loops;

/* One step of an optimizer (optimizers.inc). A rule ignores a slot that it does not have. */
typedef unsigned rs_apply_loop(void* restrict parameters, const void* restrict gradient,
                               void* restrict first_slot, void* restrict second_slot,
                               const float* scalars, size_t count);

enum { RS_OPS = 10, RS_DTYPES = 19, RS_RULES = 6, RS_SLOTS = 2 };

typedef struct {
  const char* name;
  rs_loops loops[RS_OPS][RS_DTYPES]; /* [op][dtype]; acc_item_size 0 where there is no kernel */
  rs_apply_loop* apply[RS_RULES];    /* [rule]; NULL where there is no rule */
  /* 1 if the magnitudes of all float32 are below the float32 with the bits `limit`. */
  int (*within)(const void* values, uint32_t limit, size_t count);
  rs_loop *half_to_float, *float_to_half, *bfloat16_to_float, *float_to_bfloat16;
} rs_level_table;

extern const rs_level_table rs_loops_baseline;
#if defined(__x86_64__)
extern const rs_level_table rs_loops_avx2;
extern const rs_level_table rs_loops_avx512;
#endif

#endif
