// The loop's thread: its turns, timers and end.
#include "io/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "io/connection.h"
#include "io/fork.h"
#include "io/processors.h"
#include "io/threads.h"

namespace ors {
namespace {

constexpr double kTick = 0.05;  // seconds; finer than any deadline of ours needs
constexpr double kTrimAfter = 5.0;
constexpr double kCloseTimeout = 1.0;  // seconds that lanes have to close after BYE

}  // namespace

Loop::Loop(Shared* shared, uint32_t number)
    : shared_(*shared), number_(number), state_(shared->state) {}

Loop::~Loop() = default;

void Loop::open() {
  const std::lock_guard<std::mutex> lock(event_mutex_);
  epoll_ = open_guarded([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  event_ = open_guarded([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  epoll_event wish{};
  wish.events = EPOLLIN | EPOLLET;  // edge-triggered: each write is an event, no read needed
  wish.data.ptr = nullptr;
  if (epoll_ < 0 || event_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &wish) != 0) {
    throw std::system_error(errno, std::system_category(),
                            "the engine cannot open its event loop (see ulimit -n)");
  }
}

void Loop::start() {
  thread_ = start_thread([this] { run(); });
}

void Loop::join() {
  if (thread_.joinable()) thread_.join();
}

void Loop::close() {
  const std::lock_guard<std::mutex> driver(driver_mutex_);  // it leaves: its operation is finished
  close_guarded(std::exchange(epoll_, -1));
  const std::lock_guard<std::mutex> event_lock(event_mutex_);
  close_guarded(std::exchange(event_, -1));
}

void Loop::wake() {
  const std::lock_guard<std::mutex> lock(event_mutex_);
  if (event_ < 0) return;
  const uint64_t one = 1;
  (void)!::write(event_, &one, sizeof one);  // a full counter means that a wake-up is pending
}

// On Linux, try_lock() of a mutex fails only if the mutex is locked.
bool Loop::claim_wake() {
  if (!io_mutex_.try_lock()) return false;
  io_mutex_.unlock();
  return !std::exchange(woken_, true);
}

// Returns the connection of a lane; null before it is first dialled.
Loop::Connection* Loop::find(const Lane* lane) const {
  for (const auto& c : connections_) {
    if (c->lane == lane) return c.get();
  }
  return nullptr;
}

void Loop::run() {
  (void)pthread_setname_np(pthread_self(), "ors-engine");
  leave_the_creators_processors(state_.options().source);
  {
    const std::lock_guard<std::mutex> io(io_mutex_);
    try {
      serve();
    } catch (const std::exception& error) {  // out of memory, most likely
      fail(ErrorCode::kInternal, "engine", std::string("the engine's thread: ") + error.what());
    }
    end();
  }
  {
    const auto lock = shared_.lock();
    if (--shared_.running > 0) return;
  }
  try {
    if (shared_.timeline) write_timeline();
  } catch (const std::exception&) {  // out of memory: the file lacks the last rounds
  }
  shared_.timeline.reset();
  for (Trust* trust : {&shared_.dedicated, &shared_.hosted}) {
    trust->key.clear();
    trust->tls.reset();
  }
  state_.pool->trim();
  shared_.arrivals.end();
  shared_.events.end();
  const auto lock = shared_.lock();
  shared_.ended = true;
  shared_.changed.notify_all();
}

void Loop::serve() {
  if (number_ == 0) {
    const auto lock = shared_.lock();
    state_.begin(monotonic());
  }
  for (;;) {
    const double now = monotonic();
    drop_unwanted(now);
    dial_wanted(now);
    step_dials(now);
    continue_reads(now);
    pump_kicked(now);
    tick(now);
    discard_unwanted();
    if (is_over(now)) return;
    const double rested = monotonic();
    sleep(until_next_dial(rested, std::clamp(next_tick_ - rested, 0.001, kTick)));
  }
}

bool Loop::is_over(double now) {
  bool aborted;
  std::string timed_out;
  bool failed;
  bool leaving;
  bool out_of_memory;
  {
    const auto lock = shared_.lock();
    aborted = shared_.abort;
    out_of_memory = shared_.out_of_memory;
    if (aborted) timed_out = shared_.timed_out;
    failed = state_.failure().has_value();
    leaving = state_.bye_queued();
  }
  if (failed) return true;
  if (out_of_memory) {
    fail(ErrorCode::kInternal, "engine", "out of memory during a round");
  } else if (aborted && !timed_out.empty()) {
    fail(ErrorCode::kTimeout, "timeout", timed_out);
  } else if (aborted) {
    fail(ErrorCode::kUnavailable, "closed", "this group is closed");
  } else {
    return leaving && finish_leaving(now);
  }
  return true;
}

void Loop::fail(ErrorCode code, const std::string& reason, const std::string& message) {
  const Change change(&shared_, this);
  state_.fail({code, message, reason});
}

// Sends the last frames, closes all sockets, and lets go of all targets.
void Loop::end() {
  const double now = monotonic();
  send_last_errors(now);
  for (const auto& c : connections_) {
    close_socket(c.get());
    const Change change(&shared_, this);
    state_.closed(c->lane, "the engine has ended", now);
  }
}

// Sleep of the loop's thread: in epoll_wait, or on driver_left_ while a driver is in epoll_wait.
void Loop::sleep(double timeout) {
  {
    auto lock = shared_.lock();
    if (awaited_ == nullptr) {
      lock.unlock();
      wait_for_events(timeout, nullptr);
      return;
    }
    if (has_work() || state_.needs_thread(number_)) return;
    if (awaited_->done()) wake();
    io_mutex_.unlock();
    driver_left_.wait_for(lock, std::chrono::duration<double>(timeout),
                          [this] { return awaited_ == nullptr; });
  }
  io_mutex_.lock();
}

void Loop::tick(double now) {
  if (now < next_tick_) return;
  next_tick_ = now + kTick;
  bool trim = false;
  {
    const Change change(&shared_, this);
    for (const auto& c : connections_) state_.heard(c->lane, c->last_heard);
    if (number_ > 0) return state_.looked(now, number_);
    const bool joined = state_.joined();
    state_.tick(now);
    if (state_.joined() != joined) shared_.changed.notify_all();
    const bool idle = state_.idle_for(kTrimAfter, now);
    trim = idle && !trimmed_;
    trimmed_ = idle;
  }
  if (trim) state_.pool->trim();
  if (shared_.timeline) write_timeline();
}

void Loop::write_timeline() {
  std::vector<RoundTrace> rounds;
  {
    const auto lock = shared_.lock();
    rounds = state_.take_traces();
  }
  auto& timeline = shared_.timeline;
  if (rounds.empty() || timeline->write(rounds)) return;
  const auto lock = shared_.lock();
  state_.trace_rounds(false);
  state_.report("timeline " + timeline->path() +
                " is full or cannot be written; no more rounds are recorded");
  timeline.reset();
}

void Loop::drop_unwanted(double now) {
  std::vector<std::pair<Lane*, std::string>> dropped;
  {
    const auto lock = shared_.lock();
    for (Lane* lane : state_.take_dropped(number_)) dropped.emplace_back(lane, lane->trouble);
  }
  for (const auto& [lane, why] : dropped) {
    Connection* c = find(lane);
    if (c != nullptr && c->step == Connection::Step::kOpen) disconnect(c, why, now);
  }
}

// No Receiver is in the middle of received() now.
void Loop::discard_unwanted() {
  const Change change(&shared_, this);
  for (Lane* lane : state_.take_discards(number_)) {
    if (Connection* c = find(lane)) c->receiver.discard();
    state_.discarded(lane);
  }
}

// After BYE: closes the sending direction and waits for the lanes to close theirs. Returns true
// when all are closed or kCloseTimeout seconds have passed.
bool Loop::finish_leaving(double now) {
  if (half_closed_at_ < 0) half_closed_at_ = now;
  bool all_done = true;
  for (const auto& c : connections_) {
    if (c->step != Connection::Step::kOpen) continue;
    all_done = false;
    if (c->half_closed) continue;
    pump(c.get(), now);
    if (c->step == Connection::Step::kOpen && c->drained()) {
      if (c->tls) c->tls->close(c->fd);
      ::shutdown(c->fd, SHUT_WR);
      c->half_closed = true;
    }
  }
  return all_done || now - half_closed_at_ > kCloseTimeout;
}

// Sends the queued ERROR frames as far as the sockets accept them without blocking.
void Loop::send_last_errors(double now) {
  for (const auto& c : connections_) {
    if (c->step != Connection::Step::kOpen) continue;
    if (!c->half_closed) pump(c.get(), now);
    if (c->step != Connection::Step::kOpen) continue;
    if (!c->half_closed) ::shutdown(c->fd, SHUT_WR);
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
    if (c->local) shared_.local_connections.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace ors
