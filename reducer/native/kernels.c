/* The kernels: choose the instruction set and split the work into blocks that stay in the L1 cache.
 * The loops over elements are in loops.inc. */
#include "kernels.h"

#include <string.h>

#include "cpu.h"
#include "fp_mode.h"
#include "loops.h"

enum { MAX_LEVELS = 4 };

static const rs_level_table* levels[MAX_LEVELS]; /* supported here, fastest first, then NULL */
static const rs_level_table* level;              /* the one in use */

__attribute__((constructor)) static void choose_level(void) {
  size_t found = 0;
#if defined(__x86_64__)
  if (rs_cpu_has(RS_CPU_AVX512)) levels[found++] = &rs_loops_avx512;
  if (rs_cpu_has(RS_CPU_AVX2)) levels[found++] = &rs_loops_avx2;
#endif
  levels[found] = &rs_loops_baseline;
  level = levels[0];
}

const char* rs_level(size_t index) {
  return index < MAX_LEVELS && levels[index] ? levels[index]->name : NULL;
}

int rs_use_level(const char* name) {
  for (size_t i = 0; levels[i]; ++i) {
    if (strcmp(levels[i]->name, name) == 0) {
      level = levels[i];
      rs_crc32c_use(i);
      rs_blocks_use(i);
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

size_t rs_acc_item_size(int op, int dtype) { return find(op, dtype)->acc_item_size; }

int rs_block_format(int dtype) {
  return dtype < RS_INT8_BLOCKS || dtype >= RS_DTYPES ? -1 : (dtype - RS_INT8_BLOCKS) % 3;
}

size_t rs_part_bytes(int dtype, size_t count) {
  const int format = rs_block_format(dtype);
  return format < 0 ? count * find(RS_SUM, dtype)->item_size : rs_blocks_bytes(format, count);
}

size_t rs_result_bytes(int dtype, size_t count) {
  const int is_bfloat16 = dtype >= RS_INT8_BLOCKS_TO_BFLOAT16;
  return is_bfloat16 ? count * sizeof(uint16_t) : rs_part_bytes(dtype, count);
}

static const void* part_at(const void* part, int dtype, size_t start) {
  return (const char*)part + rs_part_bytes(dtype, start);
}

static size_t block_at(size_t start, size_t count) {
  return count - start < RS_BLOCK ? count - start : RS_BLOCK;
}

/* The flags so far, and the number of the first part that is not finite. */
typedef struct {
  unsigned flags;
  size_t part; /* from 1; 0 if all parts were finite */
} outcome;

static void note(outcome* all, unsigned flags, size_t part) {
  all->flags |= flags;
  if (flags & RS_NONFINITE && (all->part == 0 || part < all->part)) {
    all->part = part;
  }
}

static unsigned answer(const outcome* all) {
  return all->flags | (unsigned)all->part << RS_PART_SHIFT;
}

/* Notes the `flags` that step or begin returned for part number `part`, from 1. The flag NONFINITE
 * of a loop with an inspect is only a hint, so inspect the operand. */
static void note_step(outcome* all, unsigned flags, const rs_loops* loops, const void* operand,
                      size_t count, size_t part) {
  if (flags & RS_NONFINITE && loops->inspect) {
    flags = (flags & ~(unsigned)RS_NONFINITE) | loops->inspect(operand, count);
  }
  note(all, flags, part);
}

/* Folds the first two parts; `acc` holds the first one. */
static void begin_block(const rs_loops* loops, void* acc, const void* part, size_t count,
                        outcome* all) {
  const unsigned flags = loops->begin(acc, part, count);
  note(all, flags & RS_BEGAN_NONFINITE ? RS_NONFINITE : 0, 1);
  note_step(all, flags & ~(unsigned)RS_BEGAN_NONFINITE, loops, part, count, 2);
}

static void fold_block(int op, int dtype, void* acc, const void* const* parts, size_t from,
                       size_t part_count, size_t start, size_t count, outcome* all) {
  const rs_loops* loops = find(op, dtype);
  for (size_t p = from; p < part_count; ++p) {
    const void* part = part_at(parts[p], dtype, start);
    note_step(all, loops->step(acc, part, count), loops, part, count, p + 1);
  }
}

unsigned rs_fold(int op, int dtype, size_t count, void* acc, const void* const* parts,
                 size_t part_count, int first) {
  const rs_loops* loops = find(op, dtype);
  const int in_place = first && acc == parts[0];
  const size_t begun = in_place ? 2 : first ? 1 : 0;
  const rs_fp_mode before = rs_ieee_begin();
  outcome all = {0, 0};
  for (size_t start = 0; start < count; start += RS_BLOCK) {
    const size_t size = block_at(start, count);
    char* block = (char*)acc + start * loops->acc_item_size;
    if (in_place) {
      begin_block(loops, block, part_at(parts[1], dtype, start), size, &all);
    } else if (first) {
      note(&all, loops->widen(block, part_at(parts[0], dtype, start), size), 1);
    }
    fold_block(op, dtype, block, parts, begun, part_count, start, size, &all);
  }
  rs_fp_set(before);
  return answer(&all);
}

unsigned rs_finish(int op, int dtype, size_t count, uint64_t world, const void* acc,
                   const void* const* parts, size_t part_count, void* out) {
  const rs_loops* loops = find(op, dtype);
  const size_t begun = acc ? 0 : 1;
  const rs_fp_mode before = rs_ieee_begin();
  outcome all = {0, 0};
  _Alignas(64) char block[RS_BLOCK * 8];
  for (size_t start = 0; start < count; start += RS_BLOCK) {
    const size_t size = block_at(start, count);
    if (acc) {
      memcpy(block, (const char*)acc + start * loops->acc_item_size, size * loops->acc_item_size);
    } else {
      note(&all, loops->widen(block, part_at(parts[0], dtype, start), size), 1);
    }
    fold_block(op, dtype, block, parts, begun, part_count, start, size, &all);
    if (op == RS_MEAN) {
      loops->divide(block, world, size);
    }
    all.flags |= loops->round((char*)out + rs_result_bytes(dtype, start), block, size);
  }
  rs_fp_set(before);
  return answer(&all);
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
  return cast(loop, 4, 2, count, source, out) & RS_NAN;
}

void rs_widen(int dtype, size_t count, const void* source, void* out) {
  rs_loop* loop = dtype == RS_FLOAT16 ? level->half_to_float : level->bfloat16_to_float;
  cast(loop, 2, 4, count, source, out);
}

static const struct {
  int slots, scalars;
} rules[RS_RULES] = {
    [RS_REPLACE] = {0, 0}, [RS_SGD] = {0, 3},  [RS_MOMENTUM] = {1, 6},
    [RS_ADAGRAD] = {1, 5}, [RS_ADAM] = {2, 6},
};

static int is_rule(int rule) { return rule >= RS_REPLACE && rule < RS_RULES; }

int rs_slot_count(int rule) { return is_rule(rule) ? rules[rule].slots : -1; }

int rs_scalar_count(int rule) { return is_rule(rule) ? rules[rule].scalars : -1; }

/* The number of elements before the first one that begins a cache line; 0 if there is no such. */
static size_t elements_before_a_line(const void* elements, size_t count) {
  const size_t line = 64, into_line = (uintptr_t)elements % line;
  const size_t before =
      into_line == 0 || into_line % sizeof(float) != 0 ? 0 : (line - into_line) / sizeof(float);
  return before < count ? before : count;
}

/* The long loop begins with a cache line of the parameters. The other arrays usually have the same
 * alignment, and vectors of 64 bytes that lie in two lines cost up to half of the speed. */
unsigned rs_apply(int rule, size_t count, void* parameters, const void* gradient,
                  void* const* slots, const float* scalars) {
  rs_apply_loop* loop = level->apply[rule];
  const size_t head = elements_before_a_line(parameters, count), skipped = head * sizeof(float);
  char* slot[RS_SLOTS] = {NULL, NULL};
  char* rest[RS_SLOTS] = {NULL, NULL};
  for (int i = 0; i < rules[rule].slots; ++i) {
    slot[i] = slots[i];
    rest[i] = slot[i] + skipped;
  }
  const rs_fp_mode before = rs_ieee_begin();
  unsigned flags = loop(parameters, gradient, slot[0], slot[1], scalars, head);
  flags |= loop((char*)parameters + skipped, (const char*)gradient + skipped, rest[0], rest[1],
                scalars, count - head);
  rs_fp_set(before);
  return flags;
}

int rs_within(size_t count, const void* values, float limit) {
  uint32_t bits;
  memcpy(&bits, &limit, sizeof bits);
  return level->within(values, bits, count);
}
