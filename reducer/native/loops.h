/* Inside the kernels: the table of loops that each instruction set's build of loops.inc fills. */
#ifndef RS_LOOPS_H
#define RS_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Elements that a loop is given at a time at most: the widest accumulator block is 16 KiB, so
 * that it and the operand stay in the L1 cache. */
#define RS_BLOCK 2048

/* Returns flags. RS_NONFINITE of widen and begin and step: `from` is not finite; where there is an
 * inspect, it may be so. RS_NONFINITE of round: `to` is not finite. */
typedef unsigned rs_loop(void* restrict to, const void* restrict from, size_t count);

enum { RS_BEGAN_NONFINITE = 1 << 8 }; /* of begin: `to`, as it was, is not finite */

typedef struct {
  uint8_t item_size, acc_item_size;
  rs_loop* widen; /* wire to accumulator */
  rs_loop* begin; /* as step, where acc is a contribution, too */
  rs_loop* step;  /* acc = acc op part */
  unsigned (*inspect)(const void* part, size_t count); /* RS_NONFINITE if it is so; may be NULL */
  void (*divide)(void* acc, uint64_t world, size_t count);
  rs_loop* round; /* accumulator to wire */
} rs_loops;

enum { RS_OPS = 10, RS_DTYPES = 13 };

typedef struct {
  const char* name;
  rs_loops loops[RS_OPS][RS_DTYPES]; /* [op][dtype]; item_size 0 where there is no kernel */
  rs_loop *half_to_float, *float_to_half, *bfloat16_to_float, *float_to_bfloat16;
} rs_level_table;

extern const rs_level_table rs_loops_baseline;
#if defined(__x86_64__)
extern const rs_level_table rs_loops_avx2;
extern const rs_level_table rs_loops_avx512;
#endif

void rs_crc32c_init(void);       /* once, before main */
void rs_crc32c_use(size_t rank); /* 0: the best way of this machine, 1: the next, ... */

#endif
