// The engine: the protocol state, one thread, and the sockets between them.
//
// Law of locking. `mutex_` guards State; it is held for bookkeeping only, never across a system
// call, nor a copy, a cast or a CRC of a caller's payload. (The engine's own comparisons, 64 KiB at
// most, are copied under it.)
//  - Who holds `io_mutex_` alone touches sockets, Receivers and Senders, brings frames into the
//    State, fails it, and finishes operations. It reads and writes payloads without `mutex_`: a
//    target stays valid until its operation is finished, which only it does, and staging memory is
//    held by reference while it is being sent.
//  - It is taken by the engine thread, which gives it up only to sleep; by a submitter, to send a
//    small round himself; and by the driver. Each gives it up under `mutex_`, having seen there
//    that no work is left, or else wakes a sleeper. A submitter kicks and tries it in one turn
//    under `mutex_`: if it is taken, its holder will see the kick.
//  - The driver is one caller at a time that waits for a small round and does the I/O meanwhile:
//    what comes wakes the thread that wants it, not one that has to wake another. It sleeps in the
//    same epoll_wait as the engine thread. Events are edges, so each wakes one of the two: in Linux
//    the one that came last, which is the driver. Either does whatever there is to do, but the
//    clock, new connections and the end are the engine thread's, which finds them at its next tick
//    at the latest. Whoever else finishes the driver's round wakes it; so that this reaches it, the
//    engine thread does not go into epoll_wait while a driver sleeps there.
//  - Any thread may submit: State::submit and State::ready under the mutex, stage() without it.
//    Chunks are published one by one, so that sending overlaps the copy of the rest; those of a
//    source that is lent are copied by who sends them.
//  - Order of locks: driver_mutex_, io_mutex_, mutex_, then finished_mutex_, event_mutex_, or the
//    own lock of an operation or the pool. Nobody waits for the engine thread while holding any.
//  - In a forked child no call takes a lock: fork_generation() is compared first, by the caller.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "crypto/handshake.h"
#include "crypto/tls.h"
#include "io/socket.h"
#include "io/timeline.h"
#include "protocol/state.h"

namespace ors {

struct LaneStats {
  std::string reducer;
  uint32_t slot = 0;
  uint32_t lane = 0;
  Value stats;
};

class Engine {
 public:
  // Opens nothing. With a key every lane must prove that it has it, too (mode psk); with a TLS
  // context, that it has a certificate (mode tls). Rounds are traced with a timeline.
  explicit Engine(Options options, Secret key = Secret(),
                  std::shared_ptr<const TlsContext> tls = nullptr,
                  std::unique_ptr<Timeline> timeline = nullptr);
  ~Engine();  // abort()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start();
  // True once the group has joined or failed.
  bool wait_joined(double seconds);
  std::optional<Failure> failure();

  std::optional<std::string> check(const Submission& submission) const;
  // A failure, or std::bad_alloc: nothing was submitted. Else the operation ends, and until then
  // the target is the engine's.
  std::optional<Failure> submit(const Submission& submission, OperationRef* operation);
  // True when it is finished; false after `seconds`, or earlier when a signal came.
  bool wait(const OperationRef& operation, double seconds);

  // The next finished operation that was submitted with notify; null on timeout or after the end.
  OperationRef next_finished(double seconds);
  std::vector<std::string> take_reports();
  // nullopt: not all lanes have answered in time, or the group has failed.
  std::optional<std::vector<LaneStats>> stats(double seconds);
  std::string silent_about_stats();  // the lanes that have not answered
  std::map<std::string, uint64_t> counters();
  std::string run_id();

  void leave();                     // say BYE as soon as everything is stable
  bool wait_ended(double seconds);  // true when the thread has nothing left to do
  // Open operations fail; ends and joins the thread. With a reason all ranks are told of it.
  void abort(const std::string& timed_out = "");

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }
  uint32_t connections() const { return connections_.load(std::memory_order_relaxed); }
  uint32_t local_connections() const { return local_connections_.load(std::memory_order_relaxed); }

 private:
  struct Connection;
  struct Sink;

  void open_event_loop();
  void publish(const Submission& submission, const RoundRef& round);
  bool claim_wake();
  void give_up();
  void run();
  void serve();
  bool drive(Operation& operation, double deadline);
  void let_go(std::unique_lock<std::mutex>* io);
  bool has_work() const;
  bool errands();
  void fail(ErrorCode code, const std::string& reason, const std::string& message);
  void drop_unwanted(double now);
  void dial_wanted(double now);
  void step_dials(double now);
  void step_dial(Connection* c, double now);
  void try_address(Connection* c, double now);
  void dial_failed(Connection* c, const std::string& why, double now);
  void retry(Connection* c, double now);
  void on_connected(Connection* c, double now);
  void begin_proof(Connection* c, double now);
  void read_proof(Connection* c, double now);
  void no_proof(Connection* c, const std::string& why, double now);
  void disproven(Connection* c, const Failure& failure, double now);
  void begin_tls(Connection* c, double now);
  void go_on_with_tls(Connection* c, double now);
  void open(Connection* c, double now);
  void read_rest(double now);
  void pump_kicked(double now);
  void fill(Lane* lane, double now);
  static std::string io_trouble(const Connection& c);
  void pump(Connection* c, double now);
  void read(Connection* c, double now);
  void end(Connection* c, const std::string& why, double now);
  void shut(Connection* c);
  void watch(Connection* c, bool write);
  void handle_event(Connection* c, uint32_t events, double now);
  void sleep(double patience);
  bool wait_for_events(double patience, const Operation* awaited);
  void tick(double now);
  void write_timeline();
  bool finish_leaving(double now);
  void finish_failed(double now);
  double until_next_dial(double now, double most) const;
  void wake();

  std::mutex mutex_;
  State state_;                      // by mutex_
  std::condition_variable changed_;  // joined, failed, stats, ended: with mutex_
  bool started_ = false;
  bool ended_ = false;
  bool abort_ = false;
  bool gave_up_ = false;
  std::string timed_out_;               // why abort() was called, if not to close the group
  bool woken_ = false;                  // by a submitter; nobody has come out of epoll_wait yet
  const Operation* awaited_ = nullptr;  // by the driver, while it sleeps in epoll_wait
  std::condition_variable driver_out_;  // awaited_ is null again: with mutex_

  std::mutex finished_mutex_;
  std::condition_variable finished_changed_;
  std::deque<OperationRef> finished_;
  bool finished_ended_ = false;

  std::mutex driver_mutex_;  // held by the driver; before all others

  std::mutex io_mutex_;
  std::vector<std::unique_ptr<Connection>> connections_list_;  // by io_mutex_, as what follows
  Secret key_;  // both end as soon as the thread does
  std::shared_ptr<const TlsContext> tls_;
  std::unique_ptr<Timeline> timeline_;
  double next_tick_ = 0;
  double half_closed_at_ = -1;
  bool trimmed_ = true;
  bool more_ = false;             // some connection was left with something to send,
  bool unread_ = false;           // or to read
  std::vector<Connection*> due_;  // to be pumped now; kept for its memory
  int epoll_ = -1;

  std::mutex event_mutex_;
  int event_ = -1;  // by event_mutex_: a submitter may write to it while another thread closes

  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
  std::atomic<uint32_t> connections_{0};
  std::atomic<uint32_t> local_connections_{0};  // of them, those over Unix sockets
  std::mutex thread_mutex_;
  std::thread thread_;
};

}  // namespace ors
