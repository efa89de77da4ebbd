#include "protocol/comparisons.h"

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ors {
namespace {

std::string comparison_key(uint64_t key_id) {
  char name[32];
  std::snprintf(name, sizeof name, "~digest/%016" PRIx64, key_id);
  return name;
}

}  // namespace

// Called at the end of State's entry points, not where a round finishes: a failure destroys rounds
// that callers further up may still use.
void Comparisons::begin_due(double now) {
  if (run_.over() || !rounds_.digests().on()) return;
  if (rounds_.mismatch()) return run_.end(*rounds_.mismatch());
  while (auto due = rounds_.digests().next_due()) {
    auto comparison = std::make_unique<Comparison>(std::move(*due));
    const uint32_t world = run_.options.world_size;
    comparison->digests.resize(world);
    std::vector<uint64_t> source(world);
    source[run_.options.rank] = comparison->own;
    Submission s;
    s.descriptor = {kAllReduce, kSum, kUInt64, false, world, 0};
    s.key = comparison_key(comparison->key_id);
    s.source = reinterpret_cast<const uint8_t*>(source.data());
    s.target = reinterpret_cast<uint8_t*>(comparison->digests.data());
    RoundRef round;
    if (auto failure = rounds_.open(s, now, &round)) return run_.end(*failure);
    round->comparison = std::move(comparison);
    for (uint32_t chunk = 0; chunk < round->plan.chunks(); ++chunk) {
      rounds_.ready(
          round, chunk,
          copy_chunk(*round, chunk, run_.options.rank, s.source, s.target, nullptr, &pool_));
    }
  }
}

}  // namespace ors
