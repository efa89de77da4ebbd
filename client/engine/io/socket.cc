#include "io/socket.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "io/fork.h"

namespace ors {
namespace {

void set_option(int fd, int level, int name, int value) {
  // Errors are ignored: a missing option costs speed or detection time, never correctness.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

// Does not set SO_RCVBUF or SO_SNDBUF, because they turn autotuning off. Does not set
// TCP_USER_TIMEOUT, because it closes connections to live peers that stop reading for a while;
// heartbeats and keepalive detect dead peers.
void set_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_keepalive(fd);
}

bool connected_to_itself(int fd) {
  SocketAddress here;
  SocketAddress there;
  here.size = there.size = sizeof here.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.size) != 0) {
    return false;
  }
  return here.size == there.size && std::memcmp(&here.storage, &there.storage, here.size) == 0;
}

SocketAddress copy_of(const sockaddr& address, socklen_t size) {
  SocketAddress copy;
  std::memcpy(&copy.storage, &address, size);
  copy.size = size;
  return copy;
}

bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Returns the first address of the interface that has the family of `to` and is link-local exactly
// if `to` is.
std::optional<SocketAddress> interface_address(const std::string& name, const SocketAddress& to) {
  const auto& wanted = reinterpret_cast<const sockaddr&>(to.storage);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  std::optional<SocketAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr && !found; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address == nullptr || name != entry->ifa_name) continue;
    if (address->sa_family != wanted.sa_family) continue;
    if (is_link_local(*address) != is_link_local(wanted)) continue;
    found = copy_of(*address,
                    address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  }
  ::freeifaddrs(list);
  return found;
}

// Leaves the choice of the port to connect(), which knows the peer. If bind() chose the port, all
// connections of the machine would share about 28,000 ports.
bool bind_to(int fd, const SocketAddress& source) {
  set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&source.storage), source.size) == 0;
}

}  // namespace

std::optional<Endpoint> parse_endpoint(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) return std::nullopt;
  Endpoint endpoint{address.substr(0, colon), address.substr(colon + 1)};
  if (endpoint.host.front() == '[' && endpoint.host.back() == ']') {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  if (endpoint.port.size() > 5 ||
      endpoint.port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(endpoint.port) < 1 || std::stoi(endpoint.port) > 65535 || endpoint.host.empty()) {
    return std::nullopt;
  }
  return endpoint;
}

void Lookup::resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &list);
  if (error != 0) {
    trouble_ = ::gai_strerror(error);
    return;
  }
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    addresses_.push_back(copy_of(*entry->ai_addr, entry->ai_addrlen));
  }
  ::freeaddrinfo(list);
}

std::shared_ptr<Lookup> Lookup::start(const Endpoint& endpoint) {
  auto lookup = std::make_shared<Lookup>();
  lookup->resolve(endpoint, AI_NUMERICHOST);
  if (!lookup->addresses_.empty()) {
    lookup->done_ = true;
    return lookup;
  }
  try {
    // The thread inherits the signal mask of the loop's thread: all signals are blocked.
    std::thread([lookup, endpoint] {
      lookup->trouble_.clear();
      lookup->resolve(endpoint, 0);
      lookup->done_.store(true, std::memory_order_release);
    }).detach();
  } catch (const std::system_error& error) {
    lookup->trouble_ = std::string("no thread for the name look-up: ") + error.what();
    lookup->done_ = true;
  }
  return lookup;
}

std::string family_name(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET6 ? "IPv6" : "IPv4";
}

std::optional<SocketAddress> find_source(const std::string& source, const SocketAddress& to) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(source.c_str(), nullptr, &hints, &list) != 0) {
    return interface_address(source, to);
  }
  std::optional<SocketAddress> found;
  if (list->ai_family == to.storage.ss_family) found = copy_of(*list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  return found;
}

int begin_connect(const SocketAddress& to, const std::string& congestion,
                  const SocketAddress* source, int* error) {
  const int fd = open_guarded([&] {
    return ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  });
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  set_options(fd);
  const auto name_size = static_cast<socklen_t>(congestion.size());
  if ((name_size > 0 &&
       ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion.data(), name_size) != 0) ||
      (source != nullptr && !bind_to(fd, *source)) ||
      (::connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 &&
       errno != EINPROGRESS)) {
    *error = errno;
    close_guarded(fd);
    return -1;
  }
  return fd;
}

void set_keepalive(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
}

int connect_result(int fd) {
  pollfd wish{fd, POLLOUT, 0};
  if (::poll(&wish, 1, 0) == 0) return EINPROGRESS;
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error == 0 && connected_to_itself(fd)) return ECONNREFUSED;
  return error;
}

std::string error_text(int error) { return std::system_category().message(error); }

}  // namespace ors
