#include "io/arrivals.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/connection.h"
#include "io/threads.h"

namespace ors {
namespace {

// Between two looks at the words. A slice of 4 MiB takes 80 us or more from a device.
constexpr std::chrono::microseconds kPause{30};
// After so many looks without news, the thread looks whether rounds have ended.
constexpr int kPatience = 20;

}  // namespace

void Arrivals::start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_ && !thread_.joinable()) thread_ = start_thread([this] { run(); });
}

bool Arrivals::watch(const RoundRef& round, const DeviceWords& words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return false;
  fresh_.push_back({round, words});
  changed_.notify_one();
  return true;
}

void Arrivals::end() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_one();
    std::swap(thread, thread_);
  }
  if (thread.joinable()) thread.join();
}

void Arrivals::run() {
  (void)pthread_setname_np(pthread_self(), "ors-arrivals");
  std::vector<Watched> all;
  for (int idle = 0;; ++idle) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (all.empty()) changed_.wait(lock, [this] { return ended_ || !fresh_.empty(); });
      if (all.empty() && fresh_.empty()) return;
      for (Watched& one : fresh_) all.push_back(std::move(one));
      fresh_.clear();
    }
    if (has_news(all) || idle >= kPatience) {
      idle = 0;
      take_news(&all);
    }
    if (!all.empty()) std::this_thread::sleep_for(kPause);
  }
}

bool Arrivals::has_news(const std::vector<Watched>& all) {
  return std::any_of(all.begin(), all.end(), [](const Watched& one) {
    return one.words.slices->load(std::memory_order_acquire) != one.seen;
  });
}

void Arrivals::take_news(std::vector<Watched>* all) {
  const Change change(&shared_, nullptr);
  const auto done = [this](Watched& one) {
    if (!take(&one)) return false;
    shared_.state.let_go(one.round.get());
    return true;
  };
  all->erase(std::remove_if(all->begin(), all->end(), done), all->end());
}

// Returns whether the round needs no more watching.
bool Arrivals::take(Watched* one) {
  if (one->round->finished) return true;
  const uint64_t count = one->round->plan.count();
  one->seen = one->words.slices->load(std::memory_order_acquire);
  const bool whole = one->seen >= (count + one->words.slice - 1) / one->words.slice;
  shared_.state.fill(one->round.get(), whole ? count : one->seen * one->words.slice);
  return whole;
}

}  // namespace ors
