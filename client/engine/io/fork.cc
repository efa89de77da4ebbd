#include "io/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace ors {
namespace {

struct Guard {
  std::mutex mutex;
  std::vector<int> fds;
};

std::atomic<int> generation{0};

Guard& guard() {
  static Guard* const instance = new Guard;  // never destroyed: threads may outlive statics
  return *instance;
}

void before_fork() { guard().mutex.lock(); }
void after_fork_in_parent() { guard().mutex.unlock(); }

void after_fork_in_child() {
  for (const int fd : guard().fds) ::close(fd);
  guard().fds.clear();
  generation.fetch_add(1);
  guard().mutex.unlock();
}

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    guard();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  });
}

}  // namespace

int open_guarded(const std::function<int()>& open) {
  install_once();
  const std::lock_guard<std::mutex> lock(guard().mutex);
  const int fd = open();
  if (fd >= 0) guard().fds.push_back(fd);
  return fd;
}

void close_guarded(int fd) {
  if (fd < 0) return;
  const std::lock_guard<std::mutex> lock(guard().mutex);
  auto& fds = guard().fds;
  fds.erase(std::remove(fds.begin(), fds.end(), fd), fds.end());
  ::close(fd);
}

int fork_generation() { return generation.load(std::memory_order_relaxed); }

}  // namespace ors
