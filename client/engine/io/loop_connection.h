// What the engine thread keeps of one connection, for loop.cc and dial.cc alone.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "io/loop.h"

namespace ors {

constexpr double kFirstRetry = 0.05;    // seconds
constexpr double kProofPatience = 5.0;  // seconds; a lane gives a worker 2

inline double monotonic() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Engine::Connection {
  enum class Step : uint8_t { kResolving, kConnecting, kProving, kOpen, kWaiting, kDone };

  Lane* lane = nullptr;
  Step step = Step::kResolving;
  int fd = -1;
  bool local = false;  // over a Unix socket
  bool watches_write = false;
  bool half_closed = false;
  bool more = false;     // its turn ended with something to send,
  bool unread = false;   // or to read
  bool hung_up = false;  // no event follows: read to the end
  std::shared_ptr<Lookup> lookup;
  std::unique_ptr<Handshake> handshake;  // while kProving, in mode psk
  std::unique_ptr<TlsStream> tls;        // in mode tls: between the socket and what follows
  size_t next_address = 0;
  double deadline = 0;  // of this attempt, or of the wait before the next
  double backoff = kFirstRetry;
  std::string trouble;

  // Nothing is left to send.
  bool drained() const { return lane->sender.empty() && (tls == nullptr || !tls->unsent()); }
};

}  // namespace ors
