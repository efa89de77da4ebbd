/* The kernels' C ABI: plain C, no Python, nothing thrown, no memory allocated.
 *
 * Law (facts that callers rely on): operands are folded in the order given, beginning from the
 * first and never from +0.0; one rounding at the end; NaN results are one canonical quiet NaN;
 * min and max propagate NaN, and -0 < +0; an integer mean truncates toward zero; integers wrap
 * and say so. Build with -ffp-contract=off and without -ffast-math, or the bits differ.
 *
 * Pointers need no alignment. Thread-safe, except rs_use_level. */
#ifndef RS_KERNELS_H
#define RS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

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
};
enum rs_op {
  RS_SUM = 1,
  RS_MEAN,
  RS_MIN,
  RS_MAX,
  RS_PROD,
  RS_BAND = 7, /* the bitwise ones are of integers alone */
  RS_BOR,
  RS_BXOR,
};
enum rs_flag { RS_OVERFLOW = 2, RS_NAN = 4, RS_NONFINITE = 16 };

/* What fold and finish return: flags, and above them the number (from 1) of the first part that
 * holds NaN or Inf; 0 if none does. RS_NONFINITE: such a part was seen, or the result is such. For
 * min and max Inf is a number like others, and NaN alone counts. */
enum { RS_PART_SHIFT = 16 };

/* Bytes of an element on the wire and in the accumulator; 0 if there is no such kernel. */
size_t rs_item_size(int op, int dtype);
size_t rs_acc_item_size(int op, int dtype);

/* acc = (first ? parts[0] : acc) op parts... for `count` elements. acc overlaps no part, but with
 * `first` it may be parts[0] itself, where elements are as wide in both and another part follows.
 * With `first` there is at least one part. op and dtype must have a kernel. */
unsigned rs_fold(int op, int dtype, size_t count, void* acc, const void* const* parts,
                 size_t part_count, int first);

/* Fold the last parts, divide a mean by `world`, round once into out. acc NULL: begin from
 * parts[0]. out may begin where acc or a part begins, else it overlaps none. */
unsigned rs_finish(int op, int dtype, size_t count, uint64_t world, const void* acc,
                   const void* const* parts, size_t part_count, void* out);

/* float32 to and from a 16-bit dtype. narrow rounds to nearest even, canonical NaN, and returns
 * RS_NAN or 0; widen is exact. The buffers do not overlap. */
unsigned rs_narrow(int dtype, size_t count, const void* source, void* out);
void rs_widen(int dtype, size_t count, const void* source, void* out);

/* CRC-32C (Castagnoli), going on from `value` (0 at the start). */
uint32_t rs_crc32c(uint32_t value, const void* data, size_t length);

/* The instruction sets that this machine can run, best first; NULL after the last. */
const char* rs_level(size_t index);
/* For tests: 0, or -1 if this machine has no such level. The CRC takes its next best way with
 * each level, too. Not while another thread computes. */
int rs_use_level(const char* name);

#ifdef __cplusplus
}
#endif
#endif
