/* A minimal reducer: sums float32 chunks in the order of their arrival and sends each sum to all
 * workers. It has no CRC, rank order, credits, names or fault tolerance. */
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

static void on_chunk(struct connection* from, struct buffer* part) {
  (void)from;
  struct slot* slot = &slots[part->header.chunk % kSlots];
  if (slot->sum == NULL) {
    slot->sum = part;
    slot->missing = workers;
  } else {
    if (slot->sum->header.chunk != part->header.chunk) die("a worker is too far ahead");
    add((float*)slot->sum->data, (const float*)part->data, part->header.length / sizeof(float));
    release(part);
  }
  if (--slot->missing != 0) return;
  for (int i = 0; i < workers; ++i) send_to(connections[i], slot->sum);
  release(slot->sum);
  slot->sum = NULL;
}

int main(int argc, char** argv) { return serve(argc, argv, on_chunk); }
