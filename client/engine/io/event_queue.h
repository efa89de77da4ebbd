// What has happened to the operations of a caller that asked to be told: signs of progress, and
// ends, in their order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "protocol/operation.h"

namespace ors {

struct Event {
  OperationRef operation;
  bool finished = false;  // else a sign of progress; see Submission::part
};

class EventQueue {
 public:
  void push(const OperationRef& operation, bool finished) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back({operation, finished});
    changed_.notify_one();
  }

  // Returns nullopt after `seconds`, or when the engine has ended and the queue is empty.
  std::optional<Event> next(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return !events_.empty() || ended_; });
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool ended_ = false;
};

}  // namespace ors
