// The TLS handshake of a connection that has just been made, before any frame. Only for the thread
// of the loop.
#include <cerrno>

#include "io/connection.h"

namespace ors {

void Loop::begin_tls(Connection* c, double now) {
  const std::string& address = state_.options().addresses[c->lane->reducer];
  c->tls = shared_.trust(*c->lane).tls->stream(
      parse_endpoint(address).value().host, static_cast<uint16_t>(c->lane->number), c->lane->name);
  c->step = Connection::Step::kProving;
  c->deadline = now + kHandshakeTimeout;
  continue_tls(c, now);
}

void Loop::continue_tls(Connection* c, double now) {
  using Proof = TlsStream::Proof;
  switch (c->tls->prove(c->fd)) {
    case Proof::kWaits:
      return;
    case Proof::kLost:
      return handshake_lost(c, errno == 0 ? "closed by the reducer" : error_text(errno), now);
    case Proof::kRefused: {
      const Failure failure = c->tls->failure();
      return handshake_refused(c, failure, now);
    }
    case Proof::kProven:
      open_lane(c, now);
      // Frames may have arrived with the handshake, and epoll does not report them again.
      if (c->step == Connection::Step::kOpen) read(c, now);
  }
}

}  // namespace ors
