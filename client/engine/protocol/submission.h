// A caller's submission and its checks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "protocol/chunk_plan.h"
#include "protocol/operation.h"
#include "protocol/run.h"

namespace ors {

constexpr uint64_t kAllFilled = ~uint64_t{0};

// Two words in memory that a device shares with the host. With them a round begins and ends without
// a thread of the caller, which may be waiting for the device, and without the interpreter.
struct DeviceWords {
  // Null, or how many slices of the source are there, of `slice` elements each; the last one may be
  // shorter. The engine watches the word. The source must be lent or be the target, without a
  // residual, and with several slices the round must be an all-reduce.
  const std::atomic<uint32_t>* slices = nullptr;
  uint64_t slice = 0;
  // Null, or 0, and becomes one of these when the operation is done.
  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kFailed = 2;
  std::atomic<uint32_t>* gate = nullptr;
};

struct Submission {
  Descriptor descriptor;
  std::string key;
  const uint8_t* source = nullptr;  // null if this rank contributes nothing
  size_t source_bytes = 0;
  uint8_t* target = nullptr;  // null if this rank receives nothing
  size_t target_bytes = 0;
  // Error feedback, for blocks: null, or as many float32 as the source has. They are added to the
  // source, and then hold what the blocks lack of the sum. Used until submit() has returned. If the
  // round fails, some of them may have changed.
  float* residual = nullptr;
  size_t residual_bytes = 0;
  bool stochastic = false;  // blocks are rounded at random; each time with the same bits
  bool lent = false;        // the caller does not change the source until the operation is done
  int32_t priority = 0;     // waiting rounds with a higher one are sent first; may differ per rank
  bool notify = false;
  // A source that fills up: its elements from here on are announced by Engine::fill(). For an
  // all-reduce whose source is lent or is the target, without a residual.
  uint64_t filled = kAllFilled;
  // Elements of the result of an all-reduce between two signs of progress; 0: no signs.
  uint64_t part = 0;
  DeviceWords words;
  OperationRef operation;  // to finish; null: a new one is created
};

// Returns nullopt, or the rule that the submission breaks. Depends on no state.
std::optional<std::string> check_submission(const Submission& submission, const Options& options);

}  // namespace ors
