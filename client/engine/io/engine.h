// The engine: the protocol state and the loops that move its bytes. The law of ownership is in
// shared.h.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/shared.h"

namespace ors {

struct LaneStats {
  std::string reducer;
  uint32_t slot = 0;
  uint32_t lane = 0;
  Value stats;
};

class Engine {
 public:
  // Does not open a connection yet. With a timeline, rounds are traced.
  explicit Engine(Options options, Trust dedicated = {}, Trust hosted = {},
                  std::unique_ptr<Timeline> timeline = nullptr);
  ~Engine();  // abort()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws std::system_error if the system has no thread or file descriptor for a loop.
  void start();
  // Returns true once the group has joined or failed, false after `seconds`.
  bool wait_joined(double seconds);
  std::optional<Failure> failure();

  std::optional<std::string> check(const Submission& submission) const;
  // If it returns a failure or throws std::bad_alloc, or std::system_error because the system has
  // no thread that watches the source (DeviceWords), nothing was submitted. Otherwise the operation
  // will finish, with or without a failure, and the engine owns the target until then.
  std::optional<Failure> submit(const Submission& submission, OperationRef* operation);
  // Returns true when the operation is finished; false after `seconds`, or earlier on a signal.
  bool wait(const OperationRef& operation, double seconds);

  // The source of the operation holds this many of its elements; see Submission::filled.
  void fill(const OperationRef& operation, uint64_t elements);

  // Returns what has happened next to an operation that was submitted with `notify`; nullopt on
  // timeout or when the engine has ended.
  std::optional<Event> next_event(double seconds) { return shared_.events.next(seconds); }
  std::vector<std::string> take_reports();
  // The view of an elastic run: see State. wait_lost() returns early if ranks are lost.
  std::vector<LostRank> wait_lost(double seconds);
  std::string view_without(const std::vector<uint32_t>& ranks, uint32_t epoch);
  std::optional<Failure> install(const std::string& view);
  std::string view();
  void promise(uint32_t epoch);
  // Ends the run on this rank. In an elastic run, the others go on.
  void fail(const Failure& cause);
  Route route();
  // Returns nullopt if a lane did not answer in time or the group has not joined or has failed.
  std::optional<std::vector<LaneStats>> stats(double seconds);
  std::string lanes_without_stats();  // names of the lanes that have not answered
  std::map<std::string, uint64_t> counters();
  std::string run_id();

  void leave();                     // sends BYE as soon as all rounds are stable
  bool wait_ended(double seconds);  // true when all loops are done, or never joined a run
  // Fails all open operations, stops the loops and joins them. With a non-empty `timed_out` the run
  // ends for all ranks with this text.
  void abort(const std::string& timed_out = "");

  uint64_t bytes_sent() const { return shared_.bytes_sent.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return shared_.bytes_received.load(std::memory_order_relaxed); }
  uint32_t connections() const { return shared_.connections.load(std::memory_order_relaxed); }
  uint32_t local_connections() const {
    return shared_.local_connections.load(std::memory_order_relaxed);
  }

 private:
  void start_loops();
  void stop_loops(const std::string& timed_out);
  void watch(const RoundRef& round, const DeviceWords& words);
  void publish(const Submission& submission, const RoundRef& round);

  Shared shared_;
  State& state_;          // shared_.state
  bool started_ = false;  // guarded by Shared::mutex
  std::mutex thread_mutex_;
};

}  // namespace ors
