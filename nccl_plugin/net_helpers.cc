#include "net_helpers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <system_error>
#include <utility>

#include "io/fork.h"

namespace ors::nccl {
namespace {

// Blocks all signals during its life: a thread that starts now never runs a handler of the program.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Helpers::Helpers(HelpedSockets* owner, size_t threads, size_t first, size_t end)
    : owner_(owner), first_(first), generation_(fork_generation()), helpers_(threads) {
  for (size_t socket = first; socket < end; ++socket) {
    helpers_[(socket - first) % threads].sockets.push_back(socket);
  }
  for (Helper& helper : helpers_) {
    helper.event =
        FileDescriptor(open_guarded([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }));
    if (!helper.event.open()) {
      throw std::system_error(errno, std::system_category(), "net: eventfd (see ulimit -n)");
    }
    helper.watched.resize(1 + helper.sockets.size());
  }
}

Helpers::~Helpers() {
  for (Helper& helper : helpers_) {
    if (helper.thread == nullptr) continue;
    if (generation_ == fork_generation()) {
      helper.thread->join();
    } else {
      // It can be neither joined nor destroyed.
      [[maybe_unused]] const std::thread* lost = helper.thread.release();
    }
  }
}

void Helpers::start() {
  const NoSignals blocked;
  for (Helper& helper : helpers_) {
    helper.thread = std::make_unique<std::thread>([this, &helper] { run(&helper); });
  }
}

void Helpers::stop() {
  stopped_ = true;
  for (Helper& helper : helpers_) wake(&helper);
}

void Helpers::wake_owner(size_t socket) { wake(&helpers_[(socket - first_) % helpers_.size()]); }

void Helpers::wake_idle(size_t most) {
  const size_t from = next_++;
  for (size_t i = 0; i < helpers_.size() && most > 0; ++i) {
    Helper* helper = &helpers_[(from + i) % helpers_.size()];
    if (!helper->asleep || !helper->idle) continue;
    wake(helper);
    --most;
  }
}

void Helpers::wake(Helper* helper) {
  if (!std::exchange(helper->asleep, false)) return;
  const uint64_t one = 1;
  (void)!::write(helper->event.get(), &one, sizeof one);  // fails only if a wake-up is pending
}

// Prepares the sleep. The mutex is held until the sleep is announced, so no wake-up is lost.
void Helpers::watch(Helper* helper) {
  helper->watched[0] = {helper->event.get(), POLLIN, 0};
  helper->idle = false;
  for (size_t i = 0; i < helper->sockets.size(); ++i) {
    const size_t socket = helper->sockets[i];
    const short events = owner_->wanted(socket);
    helper->watched[1 + i] = {events == 0 ? -1 : owner_->descriptor(socket), events, 0};
    helper->idle = helper->idle || (events & POLLOUT) == 0;
  }
  helper->asleep = true;
}

void Helpers::run(Helper* helper) {
  (void)pthread_setname_np(pthread_self(), "ors-net");
  try {
    std::unique_lock<std::mutex> lock(owner_->mutex);
    while (!stopped_) {
      watch(helper);
      lock.unlock();
      if (::poll(helper->watched.data(), helper->watched.size(), -1) < 0 && errno != EINTR) {
        throw std::system_error(errno, std::system_category(), "poll");
      }
      if (helper->watched[0].revents != 0) {
        uint64_t count;
        (void)!::read(helper->event.get(), &count, sizeof count);
      }
      lock.lock();
      helper->asleep = false;
      if (stopped_) return;
      lock.unlock();
      for (size_t i = 0; i < helper->sockets.size(); ++i) {
        const short events = helper->watched[1 + i].revents;
        if (events != 0) owner_->serve(helper->sockets[i], events);
      }
      lock.lock();
    }
  } catch (const std::exception& error) {
    owner_->broken(error.what());
  }
}

}  // namespace ors::nccl
