/* Inside the kernels: the table of loops that each instruction set's build of loops.inc fills. */
#ifndef RS_LOOPS_H
#define RS_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Elements that a loop is given at a time at most: the widest accumulator block is 16 KiB, so
 * that it and the operand stay in the L1 cache. */
#define RS_BLOCK 2048

typedef unsigned rs_loop(void* restrict to, const void* restrict from, size_t count); /* flags */

typedef struct {
  uint8_t item_size, acc_item_size;
  rs_loop* widen; /* wire to accumulator */
  rs_loop* step;  /* acc = acc op part */
  void (*divide)(void* acc, uint64_t world, size_t count);
  rs_loop* round; /* accumulator to wire */
} rs_loops;

enum { RS_OPS = 6, RS_DTYPES = 11 };

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
