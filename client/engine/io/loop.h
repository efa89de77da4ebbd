// One I/O thread of an engine: an epoll loop and the connections of its lanes. The class is
// implemented in loop.cc (the thread, its turns and its end), driver.cc (callers that do its I/O),
// transfer.cc (reading and writing), dial.cc (connect and retry), psk_handshake.cc and
// tls_handshake.cc. The law of ownership is in shared.h.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/shared.h"

namespace ors {

class Loop {
 public:
  Loop(Shared* shared, uint32_t number);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void open();   // makes the event loop; throws std::system_error
  void start();  // starts the thread
  void join();
  void close();  // after join(): closes the event loop when its driver has left it

  // --- for other threads ---
  void wake();
  // Requires Shared::mutex. Returns true if the caller must wake the loop: no thread holds the I/O
  // mutex, and no wake-up is pending.
  bool claim_wake();
  // Requires Shared::mutex. Takes the I/O mutex if no thread has it.
  std::unique_lock<std::mutex> try_io() { return {io_mutex_, std::try_to_lock}; }
  void send_ready(std::unique_lock<std::mutex>* io);  // sends what is due, and releases the mutex
  // Waits as the loop's driver, unless there is one. Returns false if the operation is open at the
  // deadline or a signal came; true if it is finished, or if the caller must wait without driving.
  bool drive(Operation& operation, double deadline);
  bool awaits(const Operation* operation) const { return awaited_ == operation; }  // with mutex

 private:
  struct Connection;
  struct Sink;

  Connection* find(const Lane* lane) const;
  void run();
  void serve();
  bool is_over(double now);
  void end();
  void fail(ErrorCode code, const std::string& reason, const std::string& message);
  void sleep(double timeout);
  void tick(double now);
  void write_timeline();
  void drop_unwanted(double now);
  void discard_unwanted();
  bool finish_leaving(double now);
  void send_last_errors(double now);

  bool serve_until_done(Operation& operation, double deadline);
  bool has_work() const;
  bool needs_thread();
  void release_io(std::unique_lock<std::mutex>* io);
  bool wait_for_events(double timeout, const Operation* awaited);
  void handle_event(Connection* c, uint32_t events, double now);

  void watch(Connection* c, bool write);
  void pump_kicked(double now);
  void fill(Connection* c, double now);
  void pump(Connection* c, double now);
  void continue_reads(double now);
  void read(Connection* c, double now);
  static std::string io_error_text(const Connection& c);
  void disconnect(Connection* c, const std::string& why, double now);
  void close_socket(Connection* c);

  void dial_wanted(double now);
  double until_next_dial(double now, double most) const;
  void step_dials(double now);
  void step_dial(Connection* c, double now);
  void try_address(Connection* c, double now);
  void dial_failed(Connection* c, const std::string& why, double now);
  void retry(Connection* c, double now);
  void on_connected(Connection* c, double now);
  void open_lane(Connection* c, double now);
  void begin_psk(Connection* c, double now);
  void read_psk(Connection* c, double now);
  void begin_tls(Connection* c, double now);
  void continue_tls(Connection* c, double now);
  void handshake_lost(Connection* c, const std::string& why, double now);
  void handshake_refused(Connection* c, const Failure& failure, double now);

  Shared& shared_;
  const uint32_t number_;
  State& state_;  // shared_.state

  // With Shared::mutex.
  bool woken_ = false;  // a wake-up was sent and no thread has left epoll_wait since
  const Operation* awaited_ = nullptr;  // the driver's operation, while the driver is in epoll_wait
  std::condition_variable driver_left_;  // awaited_ became null

  std::mutex driver_mutex_;  // held by the driver

  std::mutex io_mutex_;  // guards all below
  std::vector<std::unique_ptr<Connection>> connections_;
  double next_tick_ = 0;
  double half_closed_at_ = -1;
  bool trimmed_ = true;
  bool unsent_ = false;           // some Connection::unsent is set
  bool unread_ = false;           // some Connection::unread is set
  std::vector<Connection*> due_;  // scratch of pump_kicked(), kept to reuse its memory
  OutgoingBatch batch_;           // scratch of fill()
  int epoll_ = -1;

  std::mutex event_mutex_;
  int event_ = -1;  // eventfd; guarded because wake() may run while close() closes it

  std::thread thread_;
};

}  // namespace ors
