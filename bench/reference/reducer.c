/* A minimal reducer: sums float32 chunks in the order of their arrival and sends each sum to all
 * workers. With CRC 1 it checks the CRC of every contribution, and computes the CRC of every sum
 * once. It has no rank order, credits, names or fault tolerance. */
#include "native/crc32c.h"
#include "server.h"

enum { kSlots = 1024 };

/* Chunks with contributions from some of the workers, by number modulo kSlots. */
static struct slot {
  struct buffer* sum;
  int missing;
} slots[kSlots];

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void add(float* restrict sum, const float* restrict part, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += part[i];
}

/* Returns the CRC of the sum. */
static uint32_t add_with_crc(float* sum, const float* part, size_t count) {
  const size_t block = kBlockBytes / sizeof *sum;
  uint32_t crc = 0;
  for (size_t done = 0; done < count; done += block) {
    const size_t size = count - done < block ? count - done : block;
    add(sum + done, part + done, size);
    crc = rs_crc32c(crc, sum + done, size * sizeof *sum);
  }
  return crc;
}

static void add_to(struct slot* slot, const struct buffer* part) {
  if (slot->sum->header.chunk != part->header.chunk) die("a worker is too far ahead");
  float* sum = (float*)slot->sum->data;
  const float* values = (const float*)part->data;
  const size_t count = part->header.length / sizeof *sum;
  if (checksums && slot->missing == 1) {
    slot->sum->header.crc = add_with_crc(sum, values, count);
  } else {
    add(sum, values, count);
  }
}

static void on_chunk(struct buffer* part) {
  struct slot* slot = &slots[part->header.chunk % kSlots];
  if (slot->sum == NULL) {
    slot->sum = part;
    slot->missing = workers;
  } else {
    add_to(slot, part);
    release(part);
  }
  if (--slot->missing != 0) return;
  for (int i = 0; i < workers; ++i) send_to(connections[i], slot->sum);
  release(slot->sum);
  slot->sum = NULL;
}

int main(int argc, char** argv) { return serve(argc, argv, on_chunk); }
