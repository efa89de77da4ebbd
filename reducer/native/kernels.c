/* The kernels: which instruction set, and blocks that stay in the L1 cache. The loops over
 * elements are in loops.inc; nothing here looks at an element. */
#include "kernels.h"

#include <string.h>

#include "ieee.h"
#include "loops.h"

enum { MAX_LEVELS = 4 };

static const rs_level_table* levels[MAX_LEVELS]; /* those of this machine, best first, then NULL */
static const rs_level_table* level;              /* the one in use */

__attribute__((constructor)) static void choose_level(void) {
  size_t found = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    levels[found++] = &rs_loops_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    levels[found++] = &rs_loops_avx2;
  }
#endif
  levels[found] = &rs_loops_baseline;
  level = levels[0];
  rs_crc32c_init();
}

const char* rs_level(size_t index) {
  return index < MAX_LEVELS && levels[index] ? levels[index]->name : NULL;
}

int rs_use_level(const char* name) {
  for (size_t i = 0; levels[i]; ++i) {
    if (strcmp(levels[i]->name, name) == 0) {
      level = levels[i];
      rs_crc32c_use(i);
      return 0;
    }
  }
  return -1;
}

static const rs_loops* find(int op, int dtype) {
  static const rs_loops none;
  const int known = op > 0 && op < RS_OPS && dtype > 0 && dtype < RS_DTYPES;
  return known ? &level->loops[op][dtype] : &none;
}

size_t rs_item_size(int op, int dtype) { return find(op, dtype)->item_size; }

size_t rs_acc_item_size(int op, int dtype) { return find(op, dtype)->acc_item_size; }

static size_t block_at(size_t start, size_t count) {
  return count - start < RS_BLOCK ? count - start : RS_BLOCK;
}

static unsigned fold_block(const rs_loops* loops, void* acc, const void* const* parts,
                           size_t part_count, size_t start, size_t count) {
  unsigned flags = 0;
  for (size_t p = 0; p < part_count; ++p) {
    flags |= loops->step(acc, (const char*)parts[p] + start * loops->item_size, count);
  }
  return flags;
}

unsigned rs_fold(int op, int dtype, size_t count, void* acc, const void* const* parts,
                 size_t part_count, int first) {
  const rs_loops* loops = find(op, dtype);
  const size_t begun = first ? 1 : 0;
  const rs_fp_mode before = rs_ieee_begin();
  unsigned flags = 0;
  for (size_t start = 0; start < count; start += RS_BLOCK) {
    const size_t size = block_at(start, count);
    char* block = (char*)acc + start * loops->acc_item_size;
    if (first) {
      loops->widen(block, (const char*)parts[0] + start * loops->item_size, size);
    }
    flags |= fold_block(loops, block, parts + begun, part_count - begun, start, size);
  }
  rs_fp_set(before);
  return flags;
}

unsigned rs_finish(int op, int dtype, size_t count, uint64_t world, const void* acc,
                   const void* const* parts, size_t part_count, void* out) {
  const rs_loops* loops = find(op, dtype);
  const size_t begun = acc ? 0 : 1;
  const rs_fp_mode before = rs_ieee_begin();
  unsigned flags = 0;
  _Alignas(64) char block[RS_BLOCK * 8];
  for (size_t start = 0; start < count; start += RS_BLOCK) {
    const size_t size = block_at(start, count);
    if (acc) {
      memcpy(block, (const char*)acc + start * loops->acc_item_size, size * loops->acc_item_size);
    } else {
      loops->widen(block, (const char*)parts[0] + start * loops->item_size, size);
    }
    flags |= fold_block(loops, block, parts + begun, part_count - begun, start, size);
    if (op == RS_MEAN) {
      loops->divide(block, world, size);
    }
    flags |= loops->round((char*)out + start * loops->item_size, block, size);
  }
  rs_fp_set(before);
  return flags;
}

static unsigned cast(rs_loop* loop, size_t in_size, size_t out_size, size_t count,
                     const void* source, void* out) {
  const rs_fp_mode before = rs_ieee_begin();
  unsigned flags = 0;
  for (size_t start = 0; start < count; start += RS_BLOCK) {
    flags |= loop((char*)out + start * out_size, (const char*)source + start * in_size,
                  block_at(start, count));
  }
  rs_fp_set(before);
  return flags;
}

unsigned rs_narrow(int dtype, size_t count, const void* source, void* out) {
  rs_loop* loop = dtype == RS_FLOAT16 ? level->float_to_half : level->float_to_bfloat16;
  return cast(loop, 4, 2, count, source, out);
}

void rs_widen(int dtype, size_t count, const void* source, void* out) {
  rs_loop* loop = dtype == RS_FLOAT16 ? level->half_to_float : level->bfloat16_to_float;
  cast(loop, 2, 4, count, source, out);
}
