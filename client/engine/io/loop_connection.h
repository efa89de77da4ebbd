// What the loop owns of one lane: the connection and the bytes under way. `io_mutex_` guards it,
// and `mutex_` does not. Private to the files of the Engine class.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "io/engine.h"
#include "io/receiver.h"
#include "io/sender.h"

namespace ors {

constexpr double kFirstRetry = 0.05;       // seconds
constexpr double kHandshakeTimeout = 5.0;  // seconds; a lane gives a worker 2

inline double monotonic() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Engine::Connection {
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

// A critical section of mutex_ in which the holder of io_mutex_ changes State. At its end, the
// Receivers discard the payloads whose targets are no longer valid.
class Engine::Change {
 public:
  explicit Change(Engine* engine) : engine_(*engine), lock_(engine->mutex_) {}
  ~Change() { engine_.discard_unwanted(); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Engine& engine_;
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace ors
