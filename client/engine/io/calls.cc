// The engine's methods for all threads: start, submit, queries, abort.
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "io/fork.h"
#include "io/loop_connection.h"

namespace ors {
namespace {

// Returns the i-th chunk that a rank publishes. Successive chunks have different reducers; within
// each run of `reducers` chunks every rank starts at a different chunk, so that the ranks do not
// all send to the same reducer's NIC at once.
uint32_t rotated(uint32_t i, uint32_t chunks, uint32_t reducers, uint32_t rank) {
  const uint32_t first = i / reducers * reducers;
  const uint32_t length = std::min(reducers, chunks - first);
  return first + (i - first + rank) % length;
}

}  // namespace

Engine::Engine(Options options, Secret key, std::shared_ptr<const TlsContext> tls,
               std::unique_ptr<Timeline> timeline)
    : state_(std::move(options)),
      key_(std::move(key)),
      tls_(std::move(tls)),
      timeline_(std::move(timeline)) {
  state_.trace_rounds(timeline_ != nullptr);
  state_.on_finished([this](const OperationRef& operation) {
    if (operation.get() == awaited_) wake();  // mutex_ is held, as for all of State
    if (!operation->notify()) return;
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    finished_.push_back(operation);
    finished_changed_.notify_one();
  });
}

Engine::~Engine() { abort(); }

void Engine::start() {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  if (started_) return;
  open_event_loop();
  // The thread inherits a full signal mask, so that the program's signal handlers never run in it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::lock_guard<std::mutex> state_lock(mutex_);
  started_ = true;
}

void Engine::open_event_loop() {
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

void Engine::wake() {
  const std::lock_guard<std::mutex> lock(event_mutex_);
  if (event_ < 0) return;
  const uint64_t one = 1;
  (void)!::write(event_, &one, sizeof one);  // a full counter means that a wake-up is pending
}

bool Engine::wait_joined(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] {
    return state_.joined() || state_.failure().has_value() || ended_;
  });
}

std::optional<Failure> Engine::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.failure();
}

std::optional<std::string> Engine::check(const Submission& submission) const {
  return state_.check(submission);  // reads only the options, which never change
}

std::optional<Failure> Engine::submit(const Submission& submission, OperationRef* operation) {
  RoundRef round;
  bool lent = false;
  bool sleeps = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto failure = state_.submit(submission, monotonic(), &round)) return failure;
    lent = round->source != nullptr;
    if (lent) sleeps = claim_wake();
  }
  *operation = round->operation;
  if (sleeps) wake();
  if (lent) return std::nullopt;  // the thread that sends a chunk copies it first
  try {
    publish(submission, round);
  } catch (const std::bad_alloc&) {  // the engine fails the operation with the group
    fail_for_memory();
  }
  return std::nullopt;
}

// Requires mutex_. Returns true if the caller must wake a thread: no thread holds io_mutex_, and no
// wake-up is pending. (On Linux, try_lock() of a mutex fails only if the mutex is locked.)
bool Engine::claim_wake() {
  if (!io_mutex_.try_lock()) return false;
  io_mutex_.unlock();
  return !std::exchange(woken_, true);
}

// Memory ran out in the middle of a round. Other ranks wait for that round, so the engine thread
// ends the run.
void Engine::fail_for_memory() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    out_of_memory_ = true;
  }
  wake();
}

void Engine::publish(const Submission& submission, const RoundRef& round) {
  const Options& options = state_.options();
  const auto reducers = static_cast<uint32_t>(options.addresses.size());
  const uint32_t chunks = round->plan.chunks();
  for (uint32_t i = 0; i < chunks; ++i) {
    const uint32_t chunk = rotated(i, chunks, reducers, options.rank);
    ChunkCopy copy = copy_chunk(*round, chunk, options.rank, submission.source, submission.target,
                                state_.pool.get());
    const bool small = chunks == 1 && copy.length <= kSmallBytes;
    std::unique_lock<std::mutex> io(io_mutex_, std::defer_lock);
    bool sleeps = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_.ready(round, chunk, std::move(copy));
      if (small) {
        (void)io.try_lock();
      } else {
        sleeps = claim_wake();
      }
    }
    if (sleeps) wake();
    if (io.owns_lock()) {
      pump_kicked(monotonic());
      release_io(&io);
    }
    if (round->operation->done()) return;  // failed or refused: the rest is not needed
  }
}

OperationRef Engine::next_finished(double seconds) {
  std::unique_lock<std::mutex> lock(finished_mutex_);
  finished_changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [this] { return !finished_.empty() || finished_ended_; });
  if (finished_.empty()) return nullptr;
  OperationRef operation = std::move(finished_.front());
  finished_.pop_front();
  return operation;
}

std::vector<std::string> Engine::take_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.take_reports();
}

std::optional<std::vector<LaneStats>> Engine::stats(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!state_.joined() || state_.failure() || ended_) return std::nullopt;
  state_.ask_stats();
  wake();
  const bool answered = changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] {
    return !state_.stats_waiting() || state_.failure().has_value() || ended_;
  });
  if (!answered || state_.failure() || ended_) return std::nullopt;
  std::vector<LaneStats> all;
  for (const Lane* lane : state_.lanes()) {
    if (lane->stats.type != Value::Type::kMap) continue;  // connection lost before the answer
    all.push_back(
        {state_.options().addresses[lane->reducer], lane->welcome.slot, lane->number, lane->stats});
  }
  return all;
}

std::string Engine::lanes_without_stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string names;
  for (const Lane* lane : state_.lanes()) {
    if (lane->stats_waiting && lane->welcomed()) names += (names.empty() ? "" : ", ") + lane->name;
  }
  return names;
}

std::map<std::string, uint64_t> Engine::counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.counters();
}

std::string Engine::run_id() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.run_id().empty() ? state_.options().run_id : state_.run_id();
}

void Engine::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!started_ || !state_.joined() || ended_) return;
  state_.leave(monotonic());
  wake();
}

bool Engine::wait_ended(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!started_ || !state_.joined()) return true;
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return ended_; });
}

void Engine::abort(const std::string& timed_out) {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  {
    const std::lock_guard<std::mutex> state_lock(mutex_);
    abort_ = true;
    timed_out_ = timed_out;
    started_ = true;  // start() does nothing from now on
  }
  wake();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    fail(ErrorCode::kUnavailable, "closed", "this group is closed");
  }
  const std::lock_guard<std::mutex> driver(
      driver_mutex_);  // the driver leaves: its operation is finished
  close_guarded(std::exchange(epoll_, -1));
  const std::lock_guard<std::mutex> event_lock(event_mutex_);
  close_guarded(std::exchange(event_, -1));
}

void Engine::fail(ErrorCode code, const std::string& reason, const std::string& message) {
  const Change change(this);
  state_.fail({code, message, reason});
}

}  // namespace ors
