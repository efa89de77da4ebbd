#include "protocol/submission.h"

#include <limits>

#include "codec/msgpack.h"

namespace ors {
namespace {

// Elements of this rank's source and target.
uint64_t source_count(const Descriptor& d, uint32_t rank, uint32_t world_size) {
  if (d.collective == kBarrier || (d.collective == kBroadcast && rank != d.root)) return 0;
  return d.collective == kReduceScatter ? d.count * world_size : d.count;
}

uint64_t target_count(const Descriptor& d, uint32_t world_size) {
  if (d.collective == kBarrier) return 0;
  return d.collective == kAllGather ? d.count * world_size : d.count;
}

std::optional<std::string> check_blocks(const Descriptor& d) {
  const std::string dtype = "dtype " + std::to_string(d.dtype);
  if (!d.wide) return dtype + " holds float32: expected wide";
  if (d.collective != kAllReduce && d.collective != kReduceScatter) {
    return dtype + " is for all_reduce and reduce_scatter, got collective " +
           std::to_string(d.collective);
  }
  if (d.op == kSum || d.op == kMean) return std::nullopt;
  return dtype + " is for op 1 and 2, sum and mean; got " + std::to_string(d.op);
}

std::optional<std::string> check_residual(const Submission& s) {
  if (s.residual == nullptr) return std::nullopt;
  if (!is_blocks(s.descriptor.dtype)) {
    return "a residual is for blocks, got dtype " + std::to_string(s.descriptor.dtype);
  }
  if (s.residual_bytes == s.source_bytes) return std::nullopt;
  return "the residual has " + std::to_string(s.residual_bytes) + " bytes, expected " +
         std::to_string(s.source_bytes) + ", as the source";
}

// A source that fills up is read later, once, and in the order of its elements.
std::optional<std::string> check_parts(const Submission& s) {
  const bool watched = s.words.slices != nullptr;
  if (watched && s.words.slice == 0) return "a slice of 0 elements";
  const bool sliced = watched && s.words.slice < s.descriptor.count;
  const bool fills = s.filled != kAllFilled;
  if (!fills && !watched && s.part == 0) return std::nullopt;
  if ((fills || sliced || s.part != 0) && s.descriptor.collective != kAllReduce) {
    return "parts are for all_reduce, got collective " + std::to_string(s.descriptor.collective);
  }
  const bool is_kept = (s.lent || s.source == s.target) && s.residual == nullptr;
  if ((!fills && !watched) || is_kept) return std::nullopt;
  return "a source that fills up must be the target, without a residual";
}

std::optional<std::string> check_descriptor(const Descriptor& d, uint32_t world_size) {
  if (d.collective < kAllReduce || d.collective > kBarrier) return "unknown collective";
  if (!contribution_layout(d.dtype).known()) return "unknown dtype " + std::to_string(d.dtype);
  if (is_blocks(d.dtype)) {
    if (auto wrong = check_blocks(d)) return wrong;
  } else if (d.wide && d.dtype != kFloat16 && d.dtype != kBFloat16) {
    return "a float32 tensor can be sent as float16, bfloat16 or blocks, got dtype " +
           std::to_string(d.dtype);
  }
  if (d.root >= world_size || (d.root != 0 && d.collective != kBroadcast)) {
    return "root " + std::to_string(d.root) + " is not a rank of this broadcast";
  }
  if (d.collective == kBarrier) {
    const bool plain = d.op == kNone && d.dtype == kUInt8 && d.count == 0;
    return plain ? std::nullopt : std::optional<std::string>("a barrier is uint8, op 0, count 0");
  }
  if (is_bitwise(d.op) && !is_integer(d.dtype)) {
    return "op " + std::to_string(d.op) + " is bitwise: expected an integer dtype, got dtype " +
           std::to_string(d.dtype);
  }
  const bool reduces = (d.op >= kSum && d.op <= kProd) || is_bitwise(d.op);
  const bool legal = moves_only(d.collective) ? d.op == kCopy : reduces;
  return legal ? std::nullopt
               : std::optional<std::string>("op " + std::to_string(d.op) +
                                            " does not fit collective " +
                                            std::to_string(d.collective));
}

std::optional<std::string> check_buffer(const char* what, bool given, size_t got, uint64_t items,
                                        uint64_t item_bytes, bool required) {
  if (!given) {
    return required ? std::optional<std::string>(std::string("this call needs a ") + what)
                    : std::nullopt;
  }
  if (items > std::numeric_limits<uint64_t>::max() / item_bytes || got != items * item_bytes) {
    return std::string("the ") + what + " has " + std::to_string(got) + " bytes, expected " +
           std::to_string(items) + " elements of " + std::to_string(item_bytes);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_submission(const Submission& s, const Options& options) {
  const Descriptor& d = s.descriptor;
  if (auto wrong = check_descriptor(d, options.world_size)) return wrong;
  if (s.key.empty() || s.key.size() > kMaxKeyBytes || !valid_utf8(s.key)) {
    return "expected a key of 1 to 512 bytes of UTF-8, got " + std::to_string(s.key.size()) +
           " bytes";
  }
  if (d.count > uint64_t{1} << 50) {
    return std::to_string(d.count) + " elements: expected at most 2^50";
  }
  const bool barrier = d.collective == kBarrier;
  const bool root = d.collective == kBroadcast && options.rank == d.root;
  const bool receiver_only = d.collective == kBroadcast && !root;
  const uint64_t item = caller_item_bytes(d);
  if (s.source != nullptr && (barrier || receiver_only)) {
    return "rank " + std::to_string(options.rank) +
           (barrier ? " gave a source: a barrier takes none"
                    : " gave a source: only root " + std::to_string(d.root) +
                          " of this broadcast gives one");
  }
  if (auto wrong = check_buffer("source", s.source != nullptr, s.source_bytes,
                                source_count(d, options.rank, options.world_size), item,
                                !barrier && !receiver_only)) {
    return wrong;
  }
  if (auto wrong = check_residual(s)) return wrong;
  if (auto wrong = check_parts(s)) return wrong;
  return check_buffer("target", s.target != nullptr, s.target_bytes,
                      target_count(d, options.world_size), item, !barrier && !root);
}

}  // namespace ors
