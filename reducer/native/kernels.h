/* The kernels' C ABI: plain C without Python. The functions throw nothing and allocate no memory.
 *
 * Law (callers rely on these facts): operands are folded in the order given, from the first operand
 * and never from +0.0; a result is rounded once, at the end; a NaN in a result is the one canonical
 * quiet NaN; min and max propagate NaN, and -0 < +0; the mean of integers truncates toward zero;
 * integers wrap and RS_OVERFLOW reports it. Build with -ffp-contract=off and without -ffast-math,
 * or the bits differ.
 *
 * Pointers need no alignment. Thread-safe, except rs_use_level. */
#ifndef RS_KERNELS_H
#define RS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "blocks.h"
#include "crc32c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of the wire protocol (PROTOCOL.md, section 5). */
enum rs_dtype {
  RS_FLOAT32 = 1,
  RS_FLOAT64,
  RS_FLOAT16,
  RS_BFLOAT16,
  RS_INT8,
  RS_UINT8,
  RS_INT32,
  RS_UINT32,
  RS_INT64,
  RS_UINT64,
  RS_FLOAT8_E4M3FN,
  RS_FLOAT8_E5M2,
  RS_INT8_BLOCKS, /* formats of blocks.h, with float32 as accumulator; sum and mean only */
  RS_FLOAT8_E4M3FN_BLOCKS,
  RS_E3M0_BLOCKS,
  RS_INT8_BLOCKS_TO_BFLOAT16, /* the parts are blocks, the result is bfloat16 */
  RS_FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16,
  RS_E3M0_BLOCKS_TO_BFLOAT16,
};
enum rs_op {
  RS_SUM = 1,
  RS_MEAN,
  RS_MIN,
  RS_MAX,
  RS_PROD,
  RS_BAND = 7, /* the bitwise ops take integers only */
  RS_BOR,
  RS_BXOR,
};
/* The update rules of optimizers (reducer/optimizers/rules.py has numbers, formulas, scalars). */
enum rs_rule { RS_REPLACE = 1, RS_SGD, RS_MOMENTUM, RS_ADAGRAD, RS_ADAM };
enum rs_flag { RS_OVERFLOW = 2, RS_NAN = 4, RS_NONFINITE = 16 };

/* fold and finish return flags and, above RS_PART_SHIFT, the number (from 1) of the first part that
 * is not finite, or 0. RS_NONFINITE: a part or the result is not finite, which means that it has
 * NaN or Inf. For min and max, Inf is an ordinary value, and only NaN counts. */
enum { RS_PART_SHIFT = 16 };

/* Bytes of an element in the accumulator; 0 if the op and dtype have no kernel. */
size_t rs_acc_item_size(int op, int dtype);

/* Bytes of `count` elements of a part, and of a result. The dtype must exist. */
size_t rs_part_bytes(int dtype, size_t count);
size_t rs_result_bytes(int dtype, size_t count);

/* The format of a dtype of blocks (blocks.h), or -1 for another dtype. */
int rs_block_format(int dtype);

/* acc = (first ? parts[0] : acc) op parts... for `count` elements. acc overlaps no part. Exception:
 * with `first`, acc may be parts[0] if accumulator and wire elements have the same size (never with
 * blocks) and another part follows. `first` needs at least one part. op and dtype must have a
 * kernel. */
unsigned rs_fold(int op, int dtype, size_t count, void* acc, const void* const* parts,
                 size_t part_count, int first);

/* Folds the last parts, divides a mean by `world`, and rounds once into out. If acc is NULL, the
 * fold begins from parts[0]. out may begin where acc or a part begins; else it overlaps none. A
 * bfloat16 result of blocks is longer than a part, and overlaps no part. */
unsigned rs_finish(int op, int dtype, size_t count, uint64_t world, const void* acc,
                   const void* const* parts, size_t part_count, void* out);

/* Convert float32 to and from a 16-bit dtype. narrow rounds to nearest even, writes canonical NaN
 * and returns RS_NAN or 0. widen is exact. The buffers must not overlap. */
unsigned rs_narrow(int dtype, size_t count, const void* source, void* out);
void rs_widen(int dtype, size_t count, const void* source, void* out);

/* The number of slots and of scalars of a rule; -1 if there is no such rule. */
int rs_slot_count(int rule);
int rs_scalar_count(int rule);

/* One step of an optimizer, in place: `count` float32 parameters, the mean of their gradients, and
 * the rule's slots, which all have `count` float32 and overlap no other array. The rule must exist.
 * The same operands give the same bits, except those of a NaN.
 *
 * Returns RS_NONFINITE if a parameter or a slot is not finite after the step, otherwise 0. An
 * operand that is not finite always leads to this, except parameters that RS_REPLACE overwrites.
 * The arrays are then spoilt; rs_finish reports such a mean before. */
unsigned rs_apply(int rule, size_t count, void* parameters, const void* gradient,
                  void* const* slots, const float* scalars);

/* 1 if all of `count` float32 are finite and below `limit` in magnitude, otherwise 0. `limit` is
 * positive, or Inf. */
int rs_within(size_t count, const void* values, float limit);

/* The names of the instruction sets that this machine supports, fastest first, then NULL. */
const char* rs_level(size_t index);
/* For tests. Returns 0, or -1 if this machine has no such level. The n-th level also selects the
 * n-th way to compute a CRC and blocks. Not to be called while another thread computes. */
int rs_use_level(const char* name);

#ifdef __cplusplus
}
#endif
#endif
