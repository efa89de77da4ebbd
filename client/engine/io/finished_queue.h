// The finished operations that a caller asked to be told of, in the order of their ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "protocol/operation.h"

namespace ors {

class FinishedQueue {
 public:
  void push(const OperationRef& operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    operations_.push_back(operation);
    changed_.notify_one();
  }

  // Returns null after `seconds`, or when the engine has ended and the queue is empty.
  OperationRef next(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return !operations_.empty() || ended_; });
    if (operations_.empty()) return nullptr;
    OperationRef operation = std::move(operations_.front());
    operations_.pop_front();
    return operation;
  }

  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OperationRef> operations_;
  bool ended_ = false;
};

}  // namespace ors
