// The psk handshake of a connection that has just been made, before any frame. Only for the thread
// of the loop.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "crypto/random.h"
#include "io/connection.h"

namespace ors {

void Loop::begin_psk(Connection* c, double now) {
  c->handshake = std::make_unique<Handshake>(shared_.trust(*c->lane).key, state_.options().job,
                                             static_cast<uint16_t>(c->lane->number),
                                             random_bytes(kNonceSize), c->lane->name);
  c->step = Connection::Step::kProving;
  c->deadline = now + kHandshakeTimeout;
  const std::string& opening = c->handshake->opening();
  const ssize_t size = ::send(c->fd, opening.data(), opening.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // The send buffer of a new connection is larger than the opening, so a short send is an error.
  if (size != static_cast<ssize_t>(opening.size()))
    return handshake_lost(c, error_text(errno), now);
  shared_.bytes_sent.fetch_add(opening.size(), std::memory_order_relaxed);
}

// Reads until the reducer's answer is complete or no byte is left: epoll reports edges.
void Loop::read_psk(Connection* c, double now) {
  char bytes[256];
  while (!c->handshake->proven()) {
    const ssize_t size = ::recv(c->fd, bytes, std::min(sizeof bytes, c->handshake->wanted()), 0);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return handshake_lost(c, error_text(errno), now);
    }
    if (size == 0) return handshake_lost(c, "closed by the reducer", now);
    shared_.bytes_received.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    if (auto failure = c->handshake->received({bytes, static_cast<size_t>(size)})) {
      return handshake_refused(c, *failure, now);
    }
  }
  c->sender.add(c->handshake->proof());
  c->handshake.reset();
  open_lane(c, now);
  // Frames may have arrived together with the answer, and epoll does not report them again.
  if (c->step == Connection::Step::kOpen) read(c, now);
}

// The network failed during the handshake. Tries the next address, or dials again later.
void Loop::handshake_lost(Connection* c, const std::string& why, double now) {
  c->trouble = why + (shared_.trust(*c->lane).tls ? ", before the end of the TLS handshake"
                                                  : ", before it proved the key");
  close_socket(c);
  try_address(c, now);
}

// The peer does not have the key or a valid certificate. A retry cannot help, so before the join
// the group fails at once. After the join the group keeps its other reducers and dials this one
// again.
void Loop::handshake_refused(Connection* c, const Failure& failure, double now) {
  dial_failed(c, failure.message, now);
  const Change change(&shared_, this);
  if (state_.joined()) return;
  state_.fail(failure);
  shared_.changed.notify_all();
}

}  // namespace ors
