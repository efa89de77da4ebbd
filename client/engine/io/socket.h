// Names, connection attempts and socket options: the engine's only use of the API of TCP besides
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

// Resolves a host name on a thread of its own, because getaddrinfo() cannot be interrupted and the
// engine must send heartbeats while a name server is silent. Numeric addresses need no thread.
class Lookup {
 public:
  static std::shared_ptr<Lookup> start(const Endpoint& endpoint);

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done(): the addresses in the resolver's order. If the look-up failed, addresses() is
  // empty and trouble() is the reason.
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  const std::string& trouble() const { return trouble_; }

 private:
  void resolve(const Endpoint& endpoint, int flags);

  std::atomic<bool> done_{false};
  std::vector<SocketAddress> addresses_;
  std::string trouble_;
};

// Returns the local address for connections to `to`. `source` is an address or the name of an
// interface; an interface is looked up at each call, because its addresses may change. Returns
// nullopt if `source` has no address of the family of `to`.
std::optional<SocketAddress> find_source(const std::string& source, const SocketAddress& to);
std::string family_name(const SocketAddress& address);

// Begins a non-blocking TCP connection. An empty `congestion` means the system's congestion
// control; a null `source` means an address of the system's choice. Returns the descriptor, or -1
// and an errno in *error.
int begin_connect(const SocketAddress& to, const std::string& congestion,
                  const SocketAddress* source, int* error);

// Detects a dead peer within a few seconds. begin_connect() has set this.
void set_keepalive(int fd);

// Returns 0 if the socket is connected, EINPROGRESS while it connects, else the errno of the
// failure. A socket that is connected to itself counts as failed; retries on loopback can cause
// one.
int connect_result(int fd);

std::string error_text(int error);

}  // namespace ors
