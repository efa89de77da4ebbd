// The psk handshake of a connection that has just been made, before any frame. Engine thread only.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "crypto/random.h"
#include "io/loop_connection.h"

namespace ors {

void Engine::begin_proof(Connection* c, double now) {
  c->handshake = std::make_unique<Handshake>(key_, state_.options().job,
                                             static_cast<uint16_t>(c->lane->number),
                                             random_bytes(kNonceSize), c->lane->name);
  c->step = Connection::Step::kProving;
  c->deadline = now + kProofPatience;
  const std::string& opening = c->handshake->opening();
  const ssize_t size = ::send(c->fd, opening.data(), opening.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // The buffer of a new connection takes more than this.
  if (size != static_cast<ssize_t>(opening.size())) return no_proof(c, error_text(errno), now);
  bytes_sent_.fetch_add(opening.size(), std::memory_order_relaxed);
  c->watches_write = true;  // as it was registered
  watch(c, false);
}

// Up to the whole answer or the last byte that is there: events are edges.
void Engine::read_proof(Connection* c, double now) {
  char bytes[256];
  while (!c->handshake->proven()) {
    const ssize_t size = ::recv(c->fd, bytes, std::min(sizeof bytes, c->handshake->wanted()), 0);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return no_proof(c, error_text(errno), now);
    }
    if (size == 0) return no_proof(c, "closed by the reducer", now);
    bytes_received_.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    if (auto failure = c->handshake->received({bytes, static_cast<size_t>(size)})) {
      return disproven(c, *failure, now);
    }
  }
  c->lane->sender.add(c->handshake->proof());
  c->handshake.reset();
  open(c, now);
  // No event tells of what came with the answer.
  if (c->step == Connection::Step::kOpen) read(c, now);
}

// The network failed, which is nobody's fault: the next address, or later again.
void Engine::no_proof(Connection* c, const std::string& why, double now) {
  c->trouble =
      why + (tls_ ? ", before the end of the TLS handshake" : ", before it had proven the key");
  shut(c);
  try_address(c, now);
}

// Somebody is there who has not the key: no retry can mend that, and who joins must be told at
// once. A group that is at work has its other reducers, and goes on trying.
void Engine::disproven(Connection* c, const Failure& failure, double now) {
  dial_failed(c, failure.message, now);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.joined()) return;
  state_.fail(failure);
  changed_.notify_all();
}

}  // namespace ors
