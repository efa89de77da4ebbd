// Threads that move the bytes of one end of a connection, beside the thread that calls net_test.
//
// Law: a socket belongs to one thread. A thread sleeps in poll() unless one of its sockets has
// bytes to move, and no thread is left once the Helpers are destroyed.
#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net_socket.h"

namespace ors::nccl {

// What the threads serve. `mutex` guards all that several threads use.
class HelpedSockets {
 public:
  virtual ~HelpedSockets() = default;
  HelpedSockets() = default;
  HelpedSockets(const HelpedSockets&) = delete;
  HelpedSockets& operator=(const HelpedSockets&) = delete;

  virtual int descriptor(size_t socket) const = 0;
  // The events of poll() that the socket waits for; 0: it is not watched. The mutex is held.
  virtual short wanted(size_t socket) = 0;
  // Some of these events have come. The mutex is not held.
  virtual void serve(size_t socket, short events) = 0;
  // A thread ends because of an exception. The mutex is not held.
  virtual void broken(const char* why) = 0;

  std::mutex mutex;
};

class Helpers {
 public:
  // Thread t serves the sockets first + t, first + t + threads, ... below `end`.
  Helpers(HelpedSockets* owner, size_t threads, size_t first, size_t end);
  // Ends the threads, if stop() has been called. In a forked child, which has no threads, this
  // only forgets them.
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  void start();  // throws std::system_error

  // The mutex is held during all of these.
  void stop();
  void wake_owner(size_t socket);
  // Wakes at most this many sleeping threads that have a socket without bytes to send.
  void wake_idle(size_t most);

 private:
  struct Helper {
    std::unique_ptr<std::thread> thread;  // null: not started
    FileDescriptor event;
    std::vector<size_t> sockets;
    std::vector<pollfd> watched;  // the event, then the sockets
    bool asleep = false;          // guarded by the mutex, as is `idle`
    bool idle = false;
  };

  void run(Helper* helper);
  void watch(Helper* helper);
  static void wake(Helper* helper);

  HelpedSockets* const owner_;
  const size_t first_;
  const int generation_;
  std::vector<Helper> helpers_;
  size_t next_ = 0;       // the thread that wake_idle() tries first
  bool stopped_ = false;  // guarded by the mutex
};

}  // namespace ors::nccl
