// What a loop owns of one lane: the connection and the bytes under way. The loop's I/O mutex guards
// it. Private to the files of the Loop class.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "crypto/handshake.h"
#include "crypto/tls.h"
#include "io/loop.h"
#include "io/receiver.h"
#include "io/sender.h"
#include "io/socket.h"

namespace ors {

constexpr double kFirstRetry = 0.05;       // seconds
constexpr double kHandshakeTimeout = 5.0;  // seconds; a lane gives a worker 2

inline double monotonic() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Loop::Connection {
  enum class Step : uint8_t { kResolving, kConnecting, kProving, kOpen, kWaiting, kDone };

  explicit Connection(Lane* to) : lane(to), receiver(to->name) {}

  Lane* const lane;
  Receiver receiver;
  Sender sender;
  double last_heard = 0;
  Step step = Step::kWaiting;
  int fd = -1;
  bool local = false;  // over a Unix socket
  bool watches_write = false;
  bool half_closed = false;
  bool unsent = false;   // its turn ended before all was sent
  bool unread = false;   // its turn ended before all was read
  bool hung_up = false;  // the peer closed: epoll reports nothing more, so read to the end
  std::shared_ptr<Lookup> lookup;
  std::unique_ptr<Handshake> handshake;  // while kProving, in mode psk
  std::unique_ptr<TlsStream> tls;        // in mode tls: encrypts and decrypts all bytes
  size_t next_address = 0;
  double deadline = 0;  // of this attempt; while kWaiting, the time of the next attempt
  double backoff = kFirstRetry;
  std::string trouble;

  // No byte is left to send, neither frames nor TLS records.
  bool drained() const { return sender.empty() && (tls == nullptr || !tls->unsent()); }
};

// A critical section in which a thread changes State. At its end it wakes the other loops that
// sleep and have work now.
class Change {
 public:
  // `own`: the loop of this thread, which sees its work itself; null for callers.
  Change(Shared* shared, const Loop* own) : shared_(*shared), own_(own), lock_(shared->lock()) {}
  ~Change() {
    const uint32_t asleep = shared_.claim_wakes(own_);
    lock_.unlock();
    if (asleep != 0) shared_.wake(asleep);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Shared& shared_;
  const Loop* const own_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace ors
