#include "protocol/run.h"

#include <cstdio>

#include "codec/msgpack.h"
#include "protocol/chunk_owners.h"

namespace ors {

std::string as_set(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

std::optional<std::string> check_options(const Options& o) {
  if (o.addresses.empty()) return "no reducer address: set REDUCER_ADDRS";
  if (o.job.empty() || o.job.size() > kMaxJobBytes) {
    return "a job name must have 1 to 128 bytes, got " + std::to_string(o.job.size());
  }
  if (o.run_id.size() > kMaxRunIdBytes) {
    return "a run id must have at most 128 bytes, got " + std::to_string(o.run_id.size());
  }
  if (!valid_utf8(o.job) || !valid_utf8(o.run_id)) return "job and run id must be UTF-8";
  if (o.world_size < 1 || o.world_size > kMaxWorldSize) {
    return "world size must be 1 to 8192, got " + std::to_string(o.world_size);
  }
  if (o.rank >= o.world_size) {
    return "rank " + std::to_string(o.rank) + " is outside world size " +
           std::to_string(o.world_size);
  }
  if (const char* wrong = check_chunk_table(o.chunk_table)) return wrong;
  if (o.min_reducers > o.addresses.size()) {
    return "min_reducers must be at most " + std::to_string(o.addresses.size()) +
           ", the number of reducers, got " + std::to_string(o.min_reducers);
  }
  if (o.hosted.size() > o.addresses.size()) return "more hosted reducers than addresses";
  if (const char* wrong = check_weights(o.weights, o.addresses.size())) return wrong;
  if (!(o.worker_silence >= 1 && o.worker_silence * 1000 <= kMaxSilenceMs)) {
    return "worker_silence must be 1 to 3600 seconds, got " + as_set(o.worker_silence);
  }
  if (o.incarnation.size() != 16) return "an incarnation must have 16 bytes";
  return std::nullopt;
}

}  // namespace ors
