// The caller's handle of a submitted round: open until it finishes once, with or without a failure.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codec/failure.h"
#include "codec/wire.h"

namespace ors {

// The lowest rank that contributed NaN or Inf to a round, and the first such chunk of that rank.
struct Culprit {
  uint32_t rank = kNoRank;  // kNoRank: no rank did
  uint32_t chunk = 0;

  bool operator<(const Culprit& other) const {
    return rank != other.rank ? rank < other.rank : chunk < other.chunk;
  }
};

// A round of one chunk up to this size is small: the caller's threads send it and read its result.
// Larger rounds are left to the loops' threads, which sends while the caller copies.
constexpr uint32_t kSmallBytes = 32 << 10;

// The next elements of a result hold the contributions of the members of the view of this epoch.
struct SumSet {
  uint64_t elements = 0;
  uint32_t epoch = 0;
};

class Operation {
 public:
  Operation(std::string key, bool notify) : key_(std::move(key)), notify_(notify) {}

  // Called once, when State has accepted the submission. round() is valid from then on.
  void begin(uint64_t round, bool small, uint32_t loop) {
    round_ = round;
    small_ = small;
    loop_ = loop;
  }

  const std::string& key() const { return key_; }
  uint64_t round() const { return round_; }
  bool notify() const { return notify_; }
  bool small() const { return small_; }
  uint32_t loop() const { return loop_; }  // whose driver can receive the result of a small round

  // Once done() is true, the values below no longer change, and the caller owns the target again.
  bool done() const { return done_.load(std::memory_order_acquire); }
  const std::optional<Failure>& failure() const { return failure_; }
  uint16_t flags() const { return flags_; }
  const Culprit& culprit() const { return culprit_; }
  const std::vector<SumSet>& sets() const { return sets_; }  // of an elastic run

  // Elements from the start of the result that have arrived, as of the last sign of progress.
  uint64_t arrived() const { return arrived_.load(std::memory_order_acquire); }
  void arrive(uint64_t elements) { arrived_.store(elements, std::memory_order_release); }

  // Returns true when the operation is finished, false after `seconds`.
  bool wait(double seconds) {
    if (done()) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    return finished_.wait_for(lock, std::chrono::duration<double>(seconds),
                              [this] { return done(); });
  }

  // Called once, by the thread that uses State.
  void finish(std::optional<Failure> failure, uint16_t flags, const Culprit& culprit,
              std::vector<SumSet> sets) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      failure_ = std::move(failure);
      flags_ = flags;
      culprit_ = culprit;
      sets_ = std::move(sets);
      done_.store(true, std::memory_order_release);
    }
    finished_.notify_all();  // after the unlock, so that waiters need not wait for the lock
  }

 private:
  const std::string key_;
  const bool notify_;
  uint64_t round_ = 0;
  bool small_ = false;
  uint32_t loop_ = 0;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<bool> done_{false};
  std::atomic<uint64_t> arrived_{0};
  std::optional<Failure> failure_;
  uint16_t flags_ = 0;
  Culprit culprit_;
  std::vector<SumSet> sets_;
};

using OperationRef = std::shared_ptr<Operation>;

}  // namespace ors
