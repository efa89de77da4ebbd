#include "loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "fork.h"

namespace ors {
namespace {

constexpr double kTick = 0.05;      // seconds; finer than any deadline of ours needs
constexpr double kDialTick = 0.01;  // look-ups and retries are polled
constexpr double kFirstRetry = 0.05;
constexpr double kLastRetry = 1.0;
constexpr double kAddressPatience = 2.0;  // before the next address of a name is tried
constexpr double kTrimAfter = 5.0;
constexpr double kGoodbye = 1.0;        // for the lanes to close after BYE
constexpr size_t kFairBytes = 2 << 20;  // moved for one connection before the others' turn
constexpr int kMaxEvents = 64;

double monotonic() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Engine::Connection {
  enum class Step : uint8_t { kResolving, kConnecting, kOpen, kWaiting, kDone };

  Lane* lane = nullptr;
  Step step = Step::kResolving;
  int fd = -1;
  bool watches_write = false;
  bool half_closed = false;
  std::shared_ptr<Lookup> lookup;
  size_t next_address = 0;
  double deadline = 0;  // of this attempt, or of the wait before the next
  double backoff = kFirstRetry;
  std::string trouble;
};

// Brings the frames of one lane into the state, each under the mutex.
struct Engine::Sink final : FrameSink {
  Sink(Engine* to, Lane* from, double at) : engine(to), lane(from), now(at) {}

  std::optional<Failure> control(const Header& header, const uint8_t* payload) override {
    const std::lock_guard<std::mutex> lock(engine->mutex_);
    auto failure = engine->state_.control(lane, header, payload, now);
    if (header.kind == kWelcome || header.kind == kStats || header.kind == kError) {
      engine->changed_.notify_all();
    }
    return failure;
  }
  std::optional<Failure> result_begins(const Header& header, Target* target) override {
    const std::lock_guard<std::mutex> lock(engine->mutex_);
    return engine->state_.result_begins(lane, header, target);
  }
  std::optional<Failure> result_ends(const Header& header) override {
    const std::lock_guard<std::mutex> lock(engine->mutex_);
    return engine->state_.result_ends(lane, header, now);
  }

  Engine* engine;
  Lane* lane;
  double now;
};

Engine::Engine(Options options) : state_(std::move(options)) {
  state_.on_finished = [this](const OperationRef& operation) {
    if (!operation->notify()) return;
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    finished_.push_back(operation);
    finished_changed_.notify_one();
  };
}

Engine::~Engine() { abort(); }

void Engine::start() {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  if (started_) return;
  open_event_loop();
  // The thread inherits the mask: no signal of the program is ever handled in it.
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
  wish.events = EPOLLIN;
  wish.data.ptr = nullptr;
  if (epoll_ < 0 || event_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &wish) != 0) {
    throw std::system_error(errno, std::system_category(), "the engine's event loop");
  }
}

// --- called by any thread ---

void Engine::wake() {
  const std::lock_guard<std::mutex> lock(event_mutex_);
  if (event_ < 0) return;
  const uint64_t one = 1;
  (void)!::write(event_, &one, sizeof one);  // full means that it is awake already
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
  return state_.check(submission);  // reads only what never changes
}

std::optional<Failure> Engine::submit(const Submission& submission, OperationRef* operation) {
  RoundRef round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto failure = state_.submit(submission, monotonic(), &round)) return failure;
  }
  *operation = round->operation;
  try {
    publish(submission, round);
  } catch (...) {  // out of memory in the middle of a round that others wait for
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      abort_ = true;
    }
    wake();
    throw;
  }
  return std::nullopt;
}

void Engine::publish(const Submission& submission, const RoundRef& round) {
  for (uint32_t chunk = 0; chunk < round->plan.chunks(); ++chunk) {
    Staged staged = stage(*round, chunk, state_.options().rank, submission, state_.pool.get());
    bool sleeps = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_.ready(round, chunk, std::move(staged));
      std::swap(sleeps, sleeping_);
    }
    if (sleeps) wake();
    if (round->operation->done()) return;  // failed or refused: nobody needs the rest
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
    all.push_back(
        {state_.options().addresses[lane->reducer], lane->welcome.slot, lane->number, lane->stats});
  }
  return all;
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

void Engine::abort() {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  {
    const std::lock_guard<std::mutex> state_lock(mutex_);
    abort_ = true;
    started_ = true;  // and so never again
  }
  wake();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    fail(ErrorCode::kUnavailable, "closed", "this group is closed");
  }
  close_guarded(std::exchange(epoll_, -1));
  const std::lock_guard<std::mutex> event_lock(event_mutex_);
  close_guarded(std::exchange(event_, -1));
}

void Engine::fail(ErrorCode code, const std::string& reason, const std::string& message) {
  Failure failure;
  failure.code = code;
  failure.reason = reason;
  failure.message = message;
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.fail(failure);
}

// --- the engine thread ---

void Engine::run() {
  (void)pthread_setname_np(pthread_self(), "ors-engine");
  try {
    serve();
  } catch (const std::exception& error) {  // out of memory, most likely
    fail(ErrorCode::kInternal, "engine", std::string("the engine's thread: ") + error.what());
  }
  finish_failed(monotonic());
  for (const auto& c : connections_list_) shut(c.get());
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
    dial_wanted(now);
    step_dials(now);
    pump_kicked(now);
    tick(now);
    bool aborted;
    bool failed;
    bool leaving;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      aborted = abort_;
      failed = state_.failure().has_value();
      leaving = state_.bye_queued();
    }
    if (aborted) return fail(ErrorCode::kUnavailable, "closed", "this group is closed");
    if (failed || (leaving && finish_leaving(now))) return;
    wait_for_events(monotonic());
  }
}

void Engine::tick(double now) {
  if (now < next_tick_) return;
  next_tick_ = now + kTick;
  bool trim = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.tick(now);
    const bool idle = state_.idle_for(kTrimAfter, now);
    trim = idle && !trimmed_;
    trimmed_ = idle;
  }
  if (trim) state_.pool->trim();
}

// --- opening connections ---

void Engine::dial_wanted(double now) {
  std::vector<Lane*> lanes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lanes = state_.wanted();
  }
  for (Lane* lane : lanes) {
    Connection* c = nullptr;
    for (const auto& known : connections_list_) {
      if (known->lane == lane) c = known.get();
    }
    if (c != nullptr) {  // it was answered and closed at once: try again, later
      c->step = Connection::Step::kWaiting;
      c->deadline = now + c->backoff;
      c->backoff = std::min(2 * c->backoff, kLastRetry);
      continue;
    }
    connections_list_.push_back(std::make_unique<Connection>());
    c = connections_list_.back().get();
    c->lane = lane;
    c->lookup = Lookup::start(*parse_endpoint(state_.options().addresses[lane->reducer]));
  }
}

bool Engine::dialing() const {
  return std::any_of(connections_list_.begin(), connections_list_.end(), [](const auto& c) {
    return c->step != Connection::Step::kOpen && c->step != Connection::Step::kDone;
  });
}

void Engine::step_dials(double now) {
  for (size_t i = 0; i < connections_list_.size(); ++i) step_dial(connections_list_[i].get(), now);
}

void Engine::step_dial(Connection* c, double now) {
  using Step = Connection::Step;
  if (c->step == Step::kWaiting && now >= c->deadline) {
    c->step = Step::kResolving;  // names are resolved anew each time: addresses change
    c->lookup = Lookup::start(*parse_endpoint(state_.options().addresses[c->lane->reducer]));
    c->next_address = 0;
  }
  if (c->step == Step::kResolving && c->lookup->done()) {
    if (c->lookup->addresses().empty()) return dial_failed(c, c->lookup->trouble(), now);
    try_address(c, now);
  } else if (c->step == Step::kConnecting && now >= c->deadline) {
    c->trouble = "no answer";
    shut(c);
    try_address(c, now);
  }
}

void Engine::try_address(Connection* c, double now) {
  while (c->next_address < c->lookup->addresses().size()) {
    int error = 0;
    c->fd = begin_connect(c->lookup->addresses()[c->next_address++], &error);
    if (c->fd >= 0) {
      c->step = Connection::Step::kConnecting;
      c->deadline = now + kAddressPatience;
      epoll_event wish{};
      wish.events = EPOLLOUT;
      wish.data.ptr = c;
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, c->fd, &wish) == 0) return;
      error = errno;
      shut(c);
    }
    c->trouble = error_text(error);
  }
  dial_failed(c, c->trouble, now);
}

void Engine::dial_failed(Connection* c, const std::string& why, double now) {
  shut(c);
  c->step = Connection::Step::kWaiting;
  c->deadline = now + c->backoff;
  c->backoff = std::min(2 * c->backoff, kLastRetry);
  const std::lock_guard<std::mutex> lock(mutex_);
  c->lane->trouble = why;
}

void Engine::on_connected(Connection* c, double now) {
  if (const int error = connect_result(c->fd)) {
    c->trouble = error_text(error);
    shut(c);
    return try_address(c, now);
  }
  c->step = Connection::Step::kOpen;
  connections_.fetch_add(1, std::memory_order_relaxed);
  c->watches_write = true;  // as it was registered
  watch(c, false);
  Preface preface;
  preface.lane = static_cast<uint16_t>(c->lane->number);
  std::string bytes(kPrefaceSize, '\0');
  pack_preface(preface, reinterpret_cast<uint8_t*>(bytes.data()));
  c->lane->sender.add(std::move(bytes));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.opened(c->lane, now);
  }
  pump(c, now);
}

// --- moving bytes ---

void Engine::watch(Connection* c, bool write) {
  if (c->watches_write == write) return;
  c->watches_write = write;
  epoll_event wish{};
  wish.events = EPOLLIN | (write ? EPOLLOUT : 0u);
  wish.data.ptr = c;
  (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, c->fd, &wish);
}

void Engine::pump_kicked(double now) {
  std::vector<Lane*> lanes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lanes = state_.kicked();
  }
  if (lanes.empty() && !more_) return;
  more_ = false;
  const size_t n = connections_list_.size();
  for (size_t i = 0; i < n; ++i) {  // each rank begins at another connection
    Connection* c = connections_list_[(i + state_.options().rank) % n].get();
    // A blocked one is pumped when the socket takes more.
    if (c->step == Connection::Step::kOpen && !c->watches_write) pump(c, now);
  }
}

void Engine::pump(Connection* c, double now) {
  Sender& sender = c->lane->sender;
  for (size_t moved = 0; c->fd >= 0 && !c->half_closed;) {
    if (sender.empty()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_.fill(c->lane, now);
    }
    if (sender.empty()) return watch(c, false);
    if (moved >= kFairBytes) {
      more_ = true;
      return;
    }
    struct iovec parts[Sender::kMaxPieces];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(sender.prepare(parts, Sender::kMaxPieces));
    const ssize_t size = ::sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return watch(c, true);
      const std::string why = error_text(errno);
      read(c, now);  // the reason may be waiting there, in an ERROR frame
      if (c->step == Connection::Step::kOpen) end(c, why, now);
      return;
    }
    moved += static_cast<size_t>(size);
    bytes_sent_.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    sender.sent(static_cast<size_t>(size));
  }
}

void Engine::read(Connection* c, double now) {
  Sink sink(this, c->lane, now);
  for (size_t moved = 0; moved < kFairBytes;) {
    struct iovec parts[2];
    const int n = c->lane->receiver.prepare(parts);
    const size_t room = parts[0].iov_len + (n > 1 ? parts[1].iov_len : 0);
    const ssize_t size = ::readv(c->fd, parts, n);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return end(c, error_text(errno), now);
    }
    if (size == 0) return end(c, "closed by the reducer", now);
    moved += static_cast<size_t>(size);
    bytes_received_.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    c->lane->last_heard = now;
    if (auto failure = c->lane->receiver.received(static_cast<size_t>(size), &sink)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_.broken(c->lane, std::move(*failure), now);
      changed_.notify_all();
      return;
    }
    if (static_cast<size_t>(size) < room) return;
  }
}

void Engine::handle_event(Connection* c, uint32_t events, double now) {
  if (c->step == Connection::Step::kConnecting) return on_connected(c, now);
  if (c->step != Connection::Step::kOpen) return;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(c, now);
  if (c->step == Connection::Step::kOpen && (events & EPOLLOUT)) pump(c, now);
}

void Engine::wait_for_events(double now) {
  bool work = more_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work = work || state_.has_kicked() || abort_;
    sleeping_ = !work;
  }
  double patience = dialing() ? kDialTick : std::clamp(next_tick_ - now, 0.001, kTick);
  if (work) patience = 0;
  epoll_event events[kMaxEvents];
  const int n = ::epoll_wait(epoll_, events, kMaxEvents, static_cast<int>(patience * 1000 + 0.5));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sleeping_ = false;
  }
  const double woken = monotonic();
  const int first = n > 0 ? static_cast<int>(state_.options().rank) % n : 0;
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[(i + first) % n];
    if (event.data.ptr != nullptr) {
      handle_event(static_cast<Connection*>(event.data.ptr), event.events, woken);
      continue;
    }
    uint64_t count = 0;
    (void)!::read(event_, &count, sizeof count);
  }
}

// --- the end ---

void Engine::end(Connection* c, const std::string& why, double now) {
  shut(c);
  connections_.fetch_sub(1, std::memory_order_relaxed);
  c->step = Connection::Step::kDone;
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.closed(c->lane, why, now);
  changed_.notify_all();
}

void Engine::shut(Connection* c) {
  close_guarded(std::exchange(c->fd, -1));
  c->watches_write = false;
}

// After BYE: our direction ends, and the lanes end theirs. True when nothing is left to wait for.
bool Engine::finish_leaving(double now) {
  if (half_closed_at_ < 0) half_closed_at_ = now;
  bool all_done = true;
  for (const auto& c : connections_list_) {
    if (c->step != Connection::Step::kOpen) continue;
    all_done = false;
    if (c->half_closed) continue;
    pump(c.get(), now);
    if (c->step == Connection::Step::kOpen && c->lane->sender.empty()) {
      ::shutdown(c->fd, SHUT_WR);
      c->half_closed = true;
    }
  }
  return all_done || now - half_closed_at_ > kGoodbye;
}

// The last words to a lane that broke the protocol, as far as its socket takes them now.
void Engine::finish_failed(double now) {
  for (const auto& c : connections_list_) {
    if (c->step != Connection::Step::kOpen || c->half_closed) continue;
    pump(c.get(), now);
    if (c->fd >= 0) ::shutdown(c->fd, SHUT_WR);
  }
  connections_.store(0, std::memory_order_relaxed);
}

}  // namespace ors
