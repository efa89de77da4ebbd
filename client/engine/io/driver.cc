// Waiting for events, and callers that do the loop's I/O: submitters of small rounds, and the
// driver.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "io/connection.h"

namespace ors {
namespace {

constexpr int kMaxEvents = 64;
constexpr double kMaxSleep = 60;  // seconds in epoll_wait
// Seconds between attempts to take the I/O mutex. Its release does not wake a waiting caller.
constexpr double kRetryLock = 0.001;

}  // namespace

void Loop::send_ready(std::unique_lock<std::mutex>* io) {
  pump_kicked(monotonic());
  release_io(io);
}

bool Loop::drive(Operation& operation, double deadline) {
  const std::unique_lock<std::mutex> driver(driver_mutex_, std::try_to_lock);
  // abort() finishes all operations before close() takes the driver mutex.
  if (!driver.owns_lock() || operation.done()) return true;
  return serve_until_done(operation, deadline);
}

// Does the I/O until the operation is finished, the deadline has passed, or a signal came; then
// returns false. Returns true, with the operation open, if the loop's thread has work of its own.
bool Loop::serve_until_done(Operation& operation, double deadline) {
  try {
    std::unique_lock<std::mutex> io(io_mutex_, std::try_to_lock);
    while (!io.owns_lock()) {
      const double left = deadline - monotonic();
      if (operation.wait(std::clamp(left, 0.0, kRetryLock)) || left <= 0) return false;
      (void)io.try_lock();
    }
    for (bool interrupted = false;;) {
      const double now = monotonic();
      continue_reads(now);
      pump_kicked(now);
      discard_unwanted();
      const bool over = operation.done() || now >= deadline || interrupted;
      if (over || needs_thread()) return release_io(&io), !over;
      interrupted = !wait_for_events(deadline - now, &operation);
    }
  } catch (...) {  // out of memory in the middle of a round that others wait for
    shared_.fail_for_memory();
    throw;
  }
}

// Requires Shared::mutex and the I/O mutex.
bool Loop::has_work() const { return unsent_ || unread_ || state_.has_byte_work(number_); }

bool Loop::needs_thread() {
  const auto lock = shared_.lock();
  return state_.needs_thread(number_);
}

// Releases the I/O mutex on behalf of a submitter or driver. Wakes a sleeping thread if work is
// left.
void Loop::release_io(std::unique_lock<std::mutex>* io) {
  bool rest;
  {
    const auto lock = shared_.lock();
    rest = has_work() || state_.needs_thread(number_);
    io->unlock();
  }
  if (rest) wake();
}

// Waits up to `timeout` seconds for events and handles them. The caller holds the I/O mutex, which
// is released during the sleep. `awaited` is the driver's operation; null for the loop's thread.
// Returns false if a signal interrupted the sleep.
bool Loop::wait_for_events(double timeout, const Operation* awaited) {
  bool sleeps;
  {
    const auto lock = shared_.lock();
    // An operation that another loop has finished meanwhile wakes nobody.
    const bool done = awaited != nullptr && awaited->done();
    sleeps = !has_work() && !state_.needs_thread(number_) && !done;
    if (sleeps) {
      awaited_ = awaited;
      io_mutex_.unlock();
    }
  }
  const int most_ms = sleeps ? static_cast<int>(std::ceil(std::min(timeout, kMaxSleep) * 1000)) : 0;
  epoll_event events[kMaxEvents];
  const int n = ::epoll_wait(epoll_, events, kMaxEvents, most_ms);
  const bool interrupted = n < 0 && errno == EINTR;
  {
    const auto lock = shared_.lock();
    woken_ = false;
    if (awaited != nullptr) awaited_ = nullptr;
  }
  if (awaited != nullptr) driver_left_.notify_one();
  if (sleeps) io_mutex_.lock();
  const double now = monotonic();
  const int first = n > 0 ? static_cast<int>(state_.options().rank) % n : 0;
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[(i + first) % n];
    if (event.data.ptr == nullptr) continue;  // wake(): the caller looks for all kinds of work
    handle_event(static_cast<Connection*>(event.data.ptr), event.events, now);
  }
  return !interrupted;
}

void Loop::handle_event(Connection* c, uint32_t events, double now) {
  if (c->step == Connection::Step::kConnecting) return on_connected(c, now);
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->hung_up = true;
  if (c->step == Connection::Step::kProving) {
    return shared_.trust(*c->lane).tls ? continue_tls(c, now) : read_psk(c, now);
  }
  if (c->step != Connection::Step::kOpen) return;
  if (c->hung_up || (events & EPOLLIN)) read(c, now);
  if (c->step == Connection::Step::kOpen && (events & EPOLLOUT)) pump(c, now);
}

}  // namespace ors
