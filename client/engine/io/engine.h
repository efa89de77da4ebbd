// The engine: the protocol state, the sockets, and the thread that serves both. The class is
// implemented in calls.cc (what callers do), loop.cc (the thread and its turns), dial.cc (connect
// and retry), psk_handshake.cc and tls_handshake.cc (handshakes).
//
// Law of locking:
//  - `mutex_` guards State. A thread holds `mutex_` for bookkeeping only: not while it sleeps, not
//    while it reads or writes a socket, and not while it copies, casts or checksums a caller's
//    payload. (The engine's own digest comparisons, at most 64 KiB, are copied under `mutex_`.)
//  - `io_mutex_` guards all I/O. Only its holder uses Connections (sockets, Receivers and Senders),
//    passes received frames to State, and finishes operations. (Exception: abort() of an engine
//    that never started.) The holder reads and writes payloads without `mutex_`. This is safe: a
//    target is valid until its operation is finished, and a Sender holds a reference to the copied
//    memory that it sends. A Change of State may finish operations whose results are arriving;
//    before it releases `mutex_`, the Receivers let go of their targets.
//  - State uses no Connection. It takes and returns frames as values, in batches: one batch is one
//    critical section of `mutex_`. It leaves orders to the loop: lanes to dial, lanes to drop, and
//    lanes whose payload must be discarded.
//  - Three kinds of threads take `io_mutex_`: the engine thread, which releases it only to sleep; a
//    submitter, to send a small round itself; and the driver (below). Each releases it under
//    `mutex_`. If work is left at that moment, a submitter or driver wakes a sleeping thread, and a
//    thread that was about to sleep does not sleep.
//  - A submitter marks lanes as ready to send and tries `io_mutex_` in one critical section of
//    `mutex_`. If the try fails, the holder of `io_mutex_` sees the mark before it releases.
//  - The driver is a caller that waits for a small round and does the I/O in the meantime. This
//    saves a thread switch: the result wakes the thread that waits for it. There is at most one
//    driver, the holder of `driver_mutex_`. It sleeps in the same epoll_wait as the engine thread.
//    Events are edge-triggered, so each event wakes one of the two; Linux wakes the one that
//    entered last, the driver. Both handle all events and send for all lanes. Only the engine
//    thread runs the timers, opens connections, closes those that State drops, and shuts down; it
//    notices such work at its next tick at the latest.
//  - A thread that finishes the driver's operation wakes the driver. The engine thread does not
//    enter epoll_wait while a driver sleeps there, because it could take that wake-up.
//  - Any thread may submit. It calls State::submit and State::ready under `mutex_`, and
//    copy_chunk() without. Chunks become ready one by one, so that the first are sent while the
//    rest are copied. Chunks of a lent source are copied by the thread that sends them.
//  - Lock order: thread_mutex_, driver_mutex_, io_mutex_, mutex_, and then at most one of
//    finished_mutex_, event_mutex_, the lock inside an operation, and the lock of the pool.
//    try_lock of `io_mutex_` is allowed under `mutex_`. Only abort() waits for the engine thread
//    with a lock held, thread_mutex_.
//  - A forked child must not take any of these locks. Callers compare fork_generation() first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
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
  // Does not open a connection yet. With a key, every lane must prove that it has the same key
  // (mode psk). With a TLS context, every lane must present a valid certificate (mode tls). With a
  // timeline, rounds are traced.
  explicit Engine(Options options, Secret key = Secret(),
                  std::shared_ptr<const TlsContext> tls = nullptr,
                  std::unique_ptr<Timeline> timeline = nullptr);
  ~Engine();  // abort()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start();
  // Returns true once the group has joined or failed, false after `seconds`.
  bool wait_joined(double seconds);
  std::optional<Failure> failure();

  std::optional<std::string> check(const Submission& submission) const;
  // If it returns a failure or throws std::bad_alloc, nothing was submitted. Otherwise the
  // operation will finish, with or without a failure, and the engine owns the target until then.
  std::optional<Failure> submit(const Submission& submission, OperationRef* operation);
  // Returns true when the operation is finished; false after `seconds`, or earlier on a signal.
  bool wait(const OperationRef& operation, double seconds);

  // Returns the next finished operation that was submitted with `notify`; null on timeout or when
  // the engine has ended.
  OperationRef next_finished(double seconds);
  std::vector<std::string> take_reports();
  // Returns nullopt if a lane did not answer in time or the group has not joined or has failed.
  std::optional<std::vector<LaneStats>> stats(double seconds);
  std::string lanes_without_stats();  // names of the lanes that have not answered
  std::map<std::string, uint64_t> counters();
  std::string run_id();

  void leave();                     // sends BYE as soon as all rounds are stable
  bool wait_ended(double seconds);  // true when the engine thread is done, or never joined a run
  // Fails all open operations, stops the engine thread and joins it. With a non-empty `timed_out`
  // the run ends for all ranks with this text.
  void abort(const std::string& timed_out = "");

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }
  uint32_t connections() const { return connections_.load(std::memory_order_relaxed); }
  uint32_t local_connections() const { return local_connections_.load(std::memory_order_relaxed); }

 private:
  struct Connection;
  class Change;
  struct Sink;

  Connection* find(const Lane* lane) const;
  void open_event_loop();
  void publish(const Submission& submission, const RoundRef& round);
  bool claim_wake();
  void fail_for_memory();
  void run();
  void serve();
  bool drive(Operation& operation, double deadline);
  void release_io(std::unique_lock<std::mutex>* io);
  bool has_work() const;
  bool needs_engine_thread();
  void fail(ErrorCode code, const std::string& reason, const std::string& message);
  void drop_unwanted(double now);
  void dial_wanted(double now);
  void step_dials(double now);
  void step_dial(Connection* c, double now);
  void try_address(Connection* c, double now);
  void dial_failed(Connection* c, const std::string& why, double now);
  void retry(Connection* c, double now);
  void on_connected(Connection* c, double now);
  void begin_psk(Connection* c, double now);
  void read_psk(Connection* c, double now);
  void handshake_lost(Connection* c, const std::string& why, double now);
  void handshake_refused(Connection* c, const Failure& failure, double now);
  void begin_tls(Connection* c, double now);
  void continue_tls(Connection* c, double now);
  void open(Connection* c, double now);
  void continue_reads(double now);
  void pump_kicked(double now);
  void discard_unwanted() noexcept;
  void fill(Connection* c, double now);
  static std::string io_error_text(const Connection& c);
  void pump(Connection* c, double now);
  void read(Connection* c, double now);
  void disconnect(Connection* c, const std::string& why, double now);
  void close_socket(Connection* c);
  void watch(Connection* c, bool write);
  void handle_event(Connection* c, uint32_t events, double now);
  void sleep(double timeout);
  bool wait_for_events(double timeout, const Operation* awaited);
  void tick(double now);
  void write_timeline();
  bool finish_leaving(double now);
  void send_last_errors(double now);
  double until_next_dial(double now, double most) const;
  void wake();

  std::mutex mutex_;
  State state_;                      // guarded by mutex_
  std::condition_variable changed_;  // joined, failed, stats, ended: with mutex_
  bool started_ = false;
  bool ended_ = false;
  bool abort_ = false;
  bool out_of_memory_ = false;
  std::string timed_out_;  // text of abort(); empty if the group was just closed
  bool woken_ = false;     // a wake-up was sent and no thread has left epoll_wait since
  const Operation* awaited_ = nullptr;  // the driver's operation, while the driver is in epoll_wait
  std::condition_variable driver_left_;  // awaited_ became null: with mutex_

  std::mutex finished_mutex_;
  std::condition_variable finished_changed_;
  std::deque<OperationRef> finished_;
  bool finished_ended_ = false;

  std::mutex driver_mutex_;  // held by the driver

  std::mutex io_mutex_;
  std::vector<std::unique_ptr<Connection>> connections_list_;
  // Guarded by io_mutex_, like connections_list_. The thread clears key_ and tls_ when it ends.
  Secret key_;
  std::shared_ptr<const TlsContext> tls_;
  std::unique_ptr<Timeline> timeline_;
  double next_tick_ = 0;
  double half_closed_at_ = -1;
  bool trimmed_ = true;
  bool unsent_ = false;           // some Connection::unsent is set
  bool unread_ = false;           // some Connection::unread is set
  std::vector<Connection*> due_;  // scratch of pump_kicked(), kept to reuse its memory
  OutgoingBatch batch_;           // scratch of fill()
  int epoll_ = -1;

  std::mutex event_mutex_;
  int event_ = -1;  // eventfd; guarded because wake() may run while abort() closes it

  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
  std::atomic<uint32_t> connections_{0};
  std::atomic<uint32_t> local_connections_{0};  // connections over Unix sockets
  std::mutex thread_mutex_;
  std::thread thread_;
};

}  // namespace ors
