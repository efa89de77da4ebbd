// The engine thread: the epoll loop, reading and writing, timers, shutdown.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "io/fork.h"
#include "io/loop_connection.h"

namespace ors {
namespace {

constexpr double kTick = 0.05;  // seconds; finer than any deadline of ours needs
constexpr double kTrimAfter = 5.0;
constexpr double kCloseTimeout = 1.0;  // seconds that lanes have to close after BYE
constexpr size_t kReadTurn = 2 << 20;  // bytes read from one connection per turn
// Bytes written to one connection per turn. Turns are short so that all lanes get the first chunks
// of a round early: writing a whole window to one lane delays the results of all lanes after it.
constexpr size_t kWriteTurn = OutgoingBatch::kMaxBytes;
constexpr int kMaxEvents = 64;
constexpr double kMaxSleep = 60;  // seconds in epoll_wait
// Seconds between attempts to take io_mutex_. Its release does not wake a waiting caller.
constexpr double kRetryLock = 0.001;

}  // namespace

// Passes the frames of one lane to State, a batch under `mutex_`.
struct Engine::Sink final : FrameSink {
  Sink(Engine* to, Lane* from, double at) : engine(to), lane(from), now(at) {}

  std::optional<Failure> take(IncomingBatch* frames) override {
    const Change change(engine);
    auto failure = engine->state_.receive(lane, frames, now);
    for (const Incoming& frame : *frames) {
      const uint8_t kind = frame.header.kind;
      if (kind == kWelcome || kind == kStats || kind == kError) engine->changed_.notify_all();
    }
    return failure;
  }

  Engine* engine;
  Lane* lane;
  double now;
};

// Returns the connection of a lane; null before it is first dialled.
Engine::Connection* Engine::find(const Lane* lane) const {
  for (const auto& c : connections_list_) {
    if (c->lane == lane) return c.get();
  }
  return nullptr;
}

// Requires mutex_ and io_mutex_.
void Engine::discard_unwanted() noexcept {
  for (const Lane* lane : state_.take_discards()) {
    if (Connection* c = find(lane)) c->receiver.discard();
  }
}

void Engine::run() {
  (void)pthread_setname_np(pthread_self(), "ors-engine");
  const std::lock_guard<std::mutex> io(io_mutex_);
  try {
    serve();
  } catch (const std::exception& error) {  // out of memory, most likely
    fail(ErrorCode::kInternal, "engine", std::string("the engine's thread: ") + error.what());
  }
  send_last_errors(monotonic());
  for (const auto& c : connections_list_) close_socket(c.get());
  try {
    if (timeline_) write_timeline();
  } catch (const std::exception&) {  // out of memory: the file lacks the last rounds
  }
  timeline_.reset();
  key_.clear();
  tls_.reset();
  state_.pool->trim();
  {
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    finished_ended_ = true;
    finished_changed_.notify_all();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Engine::serve() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
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
    bool aborted;
    std::string timed_out;
    bool failed;
    bool leaving;
    bool out_of_memory;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      aborted = abort_;
      out_of_memory = out_of_memory_;
      if (aborted) timed_out = timed_out_;
      failed = state_.failure().has_value();
      leaving = state_.bye_queued();
    }
    if (out_of_memory) return fail(ErrorCode::kInternal, "engine", "out of memory during a round");
    if (aborted && !timed_out.empty()) return fail(ErrorCode::kTimeout, "timeout", timed_out);
    if (aborted) return fail(ErrorCode::kUnavailable, "closed", "this group is closed");
    if (failed || (leaving && finish_leaving(now))) return;
    const double rested = monotonic();
    sleep(until_next_dial(rested, std::clamp(next_tick_ - rested, 0.001, kTick)));
  }
}

// Sleep of the engine thread: in epoll_wait, or on driver_left_ while a driver is in epoll_wait.
void Engine::sleep(double timeout) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (awaited_ == nullptr) {
      lock.unlock();
      wait_for_events(timeout, nullptr);
      return;
    }
    if (has_work() || state_.needs_engine_thread()) return;
    if (awaited_->done()) wake();
    io_mutex_.unlock();
    driver_left_.wait_for(lock, std::chrono::duration<double>(timeout),
                          [this] { return awaited_ == nullptr; });
  }
  io_mutex_.lock();
}

void Engine::tick(double now) {
  if (now < next_tick_) return;
  next_tick_ = now + kTick;
  bool trim = false;
  {
    const Change change(this);
    for (const auto& c : connections_list_) state_.heard(c->lane, c->last_heard);
    state_.tick(now);
    const bool idle = state_.idle_for(kTrimAfter, now);
    trim = idle && !trimmed_;
    trimmed_ = idle;
  }
  if (trim) state_.pool->trim();
  if (timeline_) write_timeline();
}

void Engine::write_timeline() {
  std::vector<RoundTrace> rounds;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rounds = state_.take_traces();
  }
  if (rounds.empty() || timeline_->write(rounds)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.trace_rounds(false);
  state_.report("timeline " + timeline_->path() +
                " is full or cannot be written; no more rounds are recorded");
  timeline_.reset();
}

// --- a caller that waits ---

bool Engine::wait(const OperationRef& operation, double seconds) {
  const double deadline = monotonic() + seconds;
  if (operation->small() && !operation->done()) {
    const std::unique_lock<std::mutex> driver(driver_mutex_, std::try_to_lock);
    // abort() finishes all operations before it takes driver_mutex_ to close the event loop.
    if (driver.owns_lock() && !operation->done() && !drive(*operation, deadline)) {
      return operation->done();
    }
  }
  return operation->wait(std::max(0.0, deadline - monotonic()));
}

// Does the I/O until the operation is finished, the deadline has passed, or a signal came; then
// returns false. Returns true, with the operation open, if the engine thread has work of its own.
bool Engine::drive(Operation& operation, double deadline) {
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
      const bool over = operation.done() || now >= deadline || interrupted;
      if (over || needs_engine_thread()) return release_io(&io), !over;
      interrupted = !wait_for_events(deadline - now, &operation);
    }
  } catch (...) {  // out of memory in the middle of a round that others wait for
    fail_for_memory();
    throw;
  }
}

// Requires mutex_ and io_mutex_.
bool Engine::has_work() const { return unsent_ || unread_ || state_.has_kicked(); }

bool Engine::needs_engine_thread() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.needs_engine_thread();
}

// Releases io_mutex_ on behalf of a submitter or driver. Wakes a sleeping thread if work is left.
void Engine::release_io(std::unique_lock<std::mutex>* io) {
  bool rest;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rest = has_work() || state_.needs_engine_thread();
    io->unlock();
  }
  if (rest) wake();
}

// --- moving bytes ---

void Engine::watch(Connection* c, bool write) {
  if (c->watches_write == write) return;
  c->watches_write = write;
  epoll_event wish{};
  wish.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (write ? EPOLLOUT : 0u);
  wish.data.ptr = c;
  (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, c->fd, &wish);
}

void Engine::pump_kicked(double now) {
  due_.clear();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!state_.has_kicked() && !unsent_) return;
    const size_t n = connections_list_.size();
    for (size_t i = 0; i < n; ++i) {  // each rank starts at a different connection
      Connection* c = connections_list_[(i + state_.options().rank) % n].get();
      // A connection with a full socket buffer is pumped on its next EPOLLOUT.
      const bool open = c->step == Connection::Step::kOpen && !c->watches_write;
      if (open && (c->unsent || c->lane->kicked)) due_.push_back(c);
    }
    state_.forget_kicked();
  }
  unsent_ = false;
  for (Connection* c : due_) pump(c, now);
}

// Takes the next frames from State. Copies a chunk first if it has to be copied.
void Engine::fill(Connection* c, double now) {
  std::optional<ChunkToCopy> next;
  ChunkCopy copy;
  batch_.clear();  // not empty if memory ran out
  do {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (next) state_.ready(next->round, next->chunk, std::exchange(copy, {}));
      next = state_.fill(c->lane, now, &batch_);
    }
    if (next) {
      const Round& round = *next->round;
      copy = copy_chunk(round, next->chunk, state_.options().rank, round.source, round.target,
                        state_.pool.get());
    }
  } while (next);
  c->sender.add(&batch_);
}

// Returns the text of the last I/O error: of TLS for a TLS error, of errno otherwise.
std::string Engine::io_error_text(const Connection& c) {
  const int error = errno;
  return c.tls && error == EPROTO ? "TLS: " + c.tls->failure().message : error_text(error);
}

void Engine::pump(Connection* c, double now) {
  Sender& sender = c->sender;
  c->unsent = false;
  for (size_t moved = 0; c->fd >= 0 && !c->half_closed;) {
    if (sender.empty()) fill(c, now);
    if (c->drained()) return watch(c, false);
    if (moved >= kWriteTurn) {
      c->unsent = unsent_ = true;
      return;
    }
    struct iovec parts[Sender::kMaxPieces];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(sender.prepare(parts, Sender::kMaxPieces));
    const ssize_t size = c->tls ? c->tls->send(c->fd, parts, static_cast<int>(message.msg_iovlen))
                                : ::sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return watch(c, true);
      const std::string why = io_error_text(*c);
      c->hung_up = true;
      read(c, now);  // an ERROR frame may give the reason
      if (c->step == Connection::Step::kOpen) disconnect(c, why, now);
      return;
    }
    moved += static_cast<size_t>(size);
    bytes_sent_.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    sender.sent(static_cast<size_t>(size));
  }
}

// Continues connections whose read() ended its turn early: epoll reports no new edge for old bytes.
void Engine::continue_reads(double now) {
  if (!std::exchange(unread_, false)) return;
  for (const auto& c : connections_list_) {
    if (c->unread && c->step == Connection::Step::kOpen) read(c.get(), now);
  }
}

void Engine::read(Connection* c, double now) {
  c->unread = false;
  Sink sink(this, c->lane, now);
  for (size_t moved = 0; moved < kReadTurn;) {
    struct iovec parts[2];
    const int n = c->receiver.prepare(parts);
    const size_t room = parts[0].iov_len + (n > 1 ? parts[1].iov_len : 0);
    const ssize_t size = c->tls ? c->tls->receive(c->fd, parts, n) : ::readv(c->fd, parts, n);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return disconnect(c, io_error_text(*c), now);
    }
    if (size == 0) return disconnect(c, "closed by the reducer", now);
    moved += static_cast<size_t>(size);
    bytes_received_.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    c->last_heard = now;
    if (auto failure = c->receiver.received(static_cast<size_t>(size), &sink)) {
      const Change change(this);
      state_.broken(c->lane, *failure, now);
      changed_.notify_all();
      return;
    }
    if (c->tls && c->tls->ended()) c->hung_up = true;  // these bytes may end with close_notify
    if (static_cast<size_t>(size) < room && !c->hung_up) return;
  }
  c->unread = unread_ = true;
}

void Engine::handle_event(Connection* c, uint32_t events, double now) {
  if (c->step == Connection::Step::kConnecting) return on_connected(c, now);
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->hung_up = true;
  if (c->step == Connection::Step::kProving) {
    return tls_ ? continue_tls(c, now) : read_psk(c, now);
  }
  if (c->step != Connection::Step::kOpen) return;
  if (c->hung_up || (events & EPOLLIN)) read(c, now);
  if (c->step == Connection::Step::kOpen && (events & EPOLLOUT)) pump(c, now);
}

// Waits up to `timeout` seconds for events and handles them. The caller holds io_mutex_, which is
// released during the sleep. `awaited` is the driver's operation; null for the engine thread.
// Returns false if a signal interrupted the sleep.
bool Engine::wait_for_events(double timeout, const Operation* awaited) {
  bool sleeps;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sleeps = !has_work() && !state_.needs_engine_thread();
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
    const std::lock_guard<std::mutex> lock(mutex_);
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

// --- shutdown ---

void Engine::drop_unwanted(double now) {
  std::vector<std::pair<Lane*, std::string>> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Lane* lane : state_.take_dropped()) dropped.emplace_back(lane, lane->trouble);
  }
  for (const auto& [lane, why] : dropped) {
    Connection* c = find(lane);
    if (c != nullptr && c->step == Connection::Step::kOpen) disconnect(c, why, now);
  }
}

void Engine::disconnect(Connection* c, const std::string& why, double now) {
  close_socket(c);
  connections_.fetch_sub(1, std::memory_order_relaxed);
  if (c->local) local_connections_.fetch_sub(1, std::memory_order_relaxed);
  c->step = Connection::Step::kDone;
  c->receiver = Receiver(c->lane->name);
  c->sender = Sender();
  const Change change(this);
  state_.closed(c->lane, why, now);
  changed_.notify_all();
}

void Engine::close_socket(Connection* c) {
  c->unread = false;
  c->hung_up = false;
  c->handshake.reset();  // it holds the key
  c->tls.reset();
  close_guarded(std::exchange(c->fd, -1));
  c->watches_write = false;
}

// After BYE: closes the sending direction and waits for the lanes to close theirs. Returns true
// when all are closed or kCloseTimeout seconds have passed.
bool Engine::finish_leaving(double now) {
  if (half_closed_at_ < 0) half_closed_at_ = now;
  bool all_done = true;
  for (const auto& c : connections_list_) {
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
void Engine::send_last_errors(double now) {
  for (const auto& c : connections_list_) {
    if (c->step != Connection::Step::kOpen || c->half_closed) continue;
    pump(c.get(), now);
    if (c->fd >= 0) ::shutdown(c->fd, SHUT_WR);
  }
  connections_.store(0, std::memory_order_relaxed);
  local_connections_.store(0, std::memory_order_relaxed);
}

}  // namespace ors
