// Names, connection attempts and socket options: the engine's only use of the network API besides
// reading and writing.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ors {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// "host:port" or "[v6]:port".
struct Endpoint {
  std::string host;
  std::string port;
};
std::optional<Endpoint> parse_endpoint(const std::string& address);

// A look-up of a name on a thread of its own, because getaddrinfo cannot be interrupted: the
// engine must go on beating while a name server is silent. Numeric addresses need no thread.
class Lookup {
 public:
  static std::shared_ptr<Lookup> start(const Endpoint& endpoint);

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Once done: in the resolver's order; empty with a reason when the name is not known.
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  const std::string& trouble() const { return trouble_; }

 private:
  void resolve(const Endpoint& endpoint, int flags);

  std::atomic<bool> done_{false};
  std::vector<SocketAddress> addresses_;
  std::string trouble_;
};

// The address that connections to `to` come from: `source` itself, or one of the interface of that
// name, which may have others by now. nullopt: it has none of the family of `to`.
std::optional<SocketAddress> find_source(const std::string& source, const SocketAddress& to);
std::string family_name(const SocketAddress& address);

// Begins a non-blocking TCP connection with a congestion control (empty: the system's) from an
// address (null: the system's choice): the descriptor, or -1 with *error set to an errno.
int begin_connect(const SocketAddress& to, const std::string& congestion,
                  const SocketAddress* source, int* error);

// Whether a connection stands: 0, EINPROGRESS, or the errno of its failure. Also refuses a socket
// that is connected to itself, which a retry on loopback can be.
int connect_result(int fd);

std::string error_text(int error);

}  // namespace ors
