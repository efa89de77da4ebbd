// The engine's methods for callers: start, submit, wait, queries, abort.
#include "io/engine.h"

#include <algorithm>
#include <chrono>

#include "io/connection.h"

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

Engine::Engine(Options options, Trust dedicated, Trust hosted, std::unique_ptr<Timeline> timeline)
    : shared_(std::move(options), std::move(dedicated), std::move(hosted), std::move(timeline)),
      state_(shared_.state) {}

Engine::~Engine() { abort(); }

void Engine::start() {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  if (started_) return;
  for (const auto& loop : shared_.loops) loop->open();
  start_loops();
  const auto state_lock = shared_.lock();
  started_ = true;
}

// Without a thread for one of the loops, the loops that have started end again.
void Engine::start_loops() {
  {
    const auto lock = shared_.lock();
    shared_.running = static_cast<uint32_t>(shared_.loops.size());
  }
  for (size_t number = 0; number < shared_.loops.size(); ++number) {
    try {
      shared_.loops[number]->start();
    } catch (...) {
      {
        const auto lock = shared_.lock();
        shared_.running -= static_cast<uint32_t>(shared_.loops.size() - number);
      }
      stop_loops("");
      throw;
    }
  }
}

bool Engine::wait_joined(double seconds) {
  auto lock = shared_.lock();
  return shared_.changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] {
    return state_.joined() || state_.failure().has_value() || shared_.ended;
  });
}

std::optional<Failure> Engine::failure() {
  const auto lock = shared_.lock();
  return state_.failure();
}

std::optional<std::string> Engine::check(const Submission& submission) const {
  return state_.check(submission);  // reads only the options, which never change
}

std::optional<Failure> Engine::submit(const Submission& submission, OperationRef* operation) {
  RoundRef round;
  bool lent = false;
  const bool watched = submission.words.slices != nullptr;
  if (watched) shared_.arrivals.start();
  {
    const Change change(&shared_, nullptr);
    if (auto failure = state_.submit(submission, monotonic(), &round)) return failure;
    lent = round->source != nullptr;
    if (watched) state_.use(round.get());
  }
  *operation = round->operation;
  if (watched) watch(round, submission.words);
  if (lent) return std::nullopt;  // the thread that sends a chunk copies it first
  try {
    publish(submission, round);
  } catch (const std::bad_alloc&) {  // the engine fails the operation with the group
    shared_.fail_for_memory();
  }
  return std::nullopt;
}

void Engine::watch(const RoundRef& round, const DeviceWords& words) {
  bool watches = false;
  try {
    watches = shared_.arrivals.watch(round, words);
  } catch (const std::bad_alloc&) {
    shared_.fail_for_memory();
  }
  if (watches) return;
  const Change change(&shared_, nullptr);
  state_.let_go(round.get());
}

void Engine::publish(const Submission& submission, const RoundRef& round) {
  const Options& options = state_.options();
  const auto reducers = static_cast<uint32_t>(options.addresses.size());
  const uint32_t chunks = round->plan.chunks();
  for (uint32_t i = 0; i < chunks; ++i) {
    const uint32_t chunk = rotated(i, chunks, reducers, options.rank);
    ChunkCopy copy = copy_chunk(*round, chunk, options.rank, submission.source, submission.target,
                                submission.residual, state_.pool.get());
    const bool small = chunks == 1 && copy.length <= kSmallBytes;
    std::unique_lock<std::mutex> io;
    Loop* loop = nullptr;
    bool sleeps = false;
    {
      const auto lock = shared_.lock();
      const Lane* lane = state_.ready(round, chunk, std::move(copy));
      if (lane == nullptr) return;  // the round has failed: the rest is not needed
      loop = shared_.loops[lane->loop].get();
      if (small) {
        io = loop->try_io();
      } else {
        sleeps = loop->claim_wake();
      }
    }
    if (sleeps) loop->wake();
    if (io.owns_lock()) loop->send_ready(&io);
  }
}

void Engine::fill(const OperationRef& operation, uint64_t elements) {
  const Change change(&shared_, nullptr);
  state_.fill(*operation, elements);
}

bool Engine::wait(const OperationRef& operation, double seconds) {
  const double deadline = monotonic() + seconds;
  if (operation->small() && !operation->done() &&
      !shared_.loops[operation->loop()]->drive(*operation, deadline)) {
    return operation->done();
  }
  return operation->wait(std::max(0.0, deadline - monotonic()));
}

std::vector<std::string> Engine::take_reports() {
  const auto lock = shared_.lock();
  return state_.take_reports();
}

std::vector<LostRank> Engine::wait_lost(double seconds) {
  auto lock = shared_.lock();
  const auto over = [this] {
    return !state_.lost().empty() || state_.failure().has_value() || shared_.ended;
  };
  shared_.changed.wait_for(lock, std::chrono::duration<double>(seconds), over);
  return state_.lost();
}

std::string Engine::view_without(const std::vector<uint32_t>& ranks, uint32_t epoch) {
  const auto lock = shared_.lock();
  return state_.view_without(ranks, epoch);
}

std::optional<Failure> Engine::install(const std::string& view) {
  std::optional<Failure> failure;
  {
    const Change change(&shared_, nullptr);
    failure = state_.install(view, monotonic());
    shared_.changed.notify_all();
  }
  shared_.wake_all();
  return failure;
}

std::string Engine::view() {
  const auto lock = shared_.lock();
  return state_.view();
}

void Engine::promise(uint32_t epoch) {
  const auto lock = shared_.lock();
  state_.promise(epoch);
}

void Engine::fail(const Failure& cause) {
  {
    const Change change(&shared_, nullptr);
    state_.fail(cause);
    shared_.changed.notify_all();
  }
  shared_.wake_all();
}

Route Engine::route() {
  const auto lock = shared_.lock();
  return state_.route();
}

std::optional<std::vector<LaneStats>> Engine::stats(double seconds) {
  auto lock = shared_.lock();
  if (!state_.joined() || state_.failure() || shared_.ended) return std::nullopt;
  state_.ask_stats();
  shared_.wake_all();
  const bool answered = shared_.changed.wait_for(
      lock, std::chrono::duration<double>(seconds),
      [this] { return !state_.stats_waiting() || state_.failure().has_value() || shared_.ended; });
  if (!answered || state_.failure() || shared_.ended) return std::nullopt;
  std::vector<LaneStats> all;
  for (const Lane* lane : state_.lanes()) {
    if (lane->stats.type != Value::Type::kMap) continue;  // connection lost before the answer
    all.push_back(
        {state_.options().addresses[lane->reducer], lane->welcome.slot, lane->number, lane->stats});
  }
  return all;
}

std::string Engine::lanes_without_stats() {
  const auto lock = shared_.lock();
  std::string names;
  for (const Lane* lane : state_.lanes()) {
    if (lane->stats_waiting && lane->welcomed()) names += (names.empty() ? "" : ", ") + lane->name;
  }
  return names;
}

std::map<std::string, uint64_t> Engine::counters() {
  const auto lock = shared_.lock();
  auto all = state_.counters();
  all["lock_waits"] = shared_.lock_waits;
  all["lock_wait_us"] = static_cast<uint64_t>(shared_.lock_seconds * 1e6);
  return all;
}

std::string Engine::run_id() {
  const auto lock = shared_.lock();
  return state_.run_id().empty() ? state_.options().run_id : state_.run_id();
}

void Engine::leave() {
  const auto lock = shared_.lock();
  if (!started_ || !state_.joined() || shared_.ended) return;
  state_.leave(monotonic());
  shared_.wake_all();
}

bool Engine::wait_ended(double seconds) {
  auto lock = shared_.lock();
  if (!started_ || !state_.joined()) return true;
  return shared_.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return shared_.ended; });
}

void Engine::abort(const std::string& timed_out) {
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  stop_loops(timed_out);
  for (const auto& loop : shared_.loops) loop->close();
}

void Engine::stop_loops(const std::string& timed_out) {
  bool ran;
  {
    const auto lock = shared_.lock();
    shared_.abort = true;
    shared_.timed_out = timed_out;
    ran = shared_.running > 0 || shared_.ended;
    started_ = true;  // start() does nothing from now on
  }
  shared_.wake_all();
  for (const auto& loop : shared_.loops) loop->join();
  if (ran) return;
  const Change change(&shared_, nullptr);
  state_.fail({ErrorCode::kUnavailable, "this group is closed", "closed"});
}

}  // namespace ors
