#include "io/local_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "io/fork.h"

namespace ors {
namespace {

constexpr char kPrefix[] = "open-reduction-server/";  // PROTOCOL.md, section 1

// The kernel doubles this value, which gives twice its default, the most that is allowed without
// privileges. A larger buffer needs fewer context switches; a still larger one gained nothing.
// Unix sockets have no autotuning.
constexpr int kSendBuffer = 212'992;

// SO_PASSRIGHTS of asm-generic/socket.h; headers older than Linux 6.16 do not have it.
constexpr int kPassRights = 83;

const sockaddr_in& v4(const void* address) { return *static_cast<const sockaddr_in*>(address); }
const sockaddr_in6& v6(const void* address) { return *static_cast<const sockaddr_in6*>(address); }

bool same_host(const sockaddr* one, const sockaddr_storage& other) {
  if (one == nullptr || one->sa_family != other.ss_family) return false;
  if (other.ss_family == AF_INET) return v4(one).sin_addr.s_addr == v4(&other).sin_addr.s_addr;
  return v6(one).sin6_scope_id == v6(&other).sin6_scope_id &&
         IN6_ARE_ADDR_EQUAL(&v6(one).sin6_addr, &v6(&other).sin6_addr);
}

// Does not test with bind(): bind() accepts every address if net.ipv4.ip_nonlocal_bind is set.
bool of_this_machine(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET && (ntohl(v4(&address).sin_addr.s_addr) >> 24) == 127) {
    return true;
  }
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = list; entry != nullptr && !found; entry = entry->ifa_next) {
    found = same_host(entry->ifa_addr, address);
  }
  ::freeifaddrs(list);
  return found;
}

// Returns the names of all listeners that would accept a TCP connection to the address: those bound
// to the address and those bound to the wildcard address.
std::vector<std::string> names(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN];
  if (address.ss_family == AF_INET) {
    const std::string port = std::to_string(ntohs(v4(&address).sin_port));
    ::inet_ntop(AF_INET, &v4(&address).sin_addr, text, sizeof text);
    return {text + (":" + port), "0.0.0.0:" + port, "[::]:" + port};
  }
  const std::string port = std::to_string(ntohs(v6(&address).sin6_port));
  ::inet_ntop(AF_INET6, &v6(&address).sin6_addr, text, sizeof text);
  return {"[" + std::string(text) + "]:" + port, "[::]:" + port};
}

int connect_abstract(const std::string& name) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (name.size() >= sizeof to.sun_path) return -1;
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd =
      open_guarded([] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  // Refuse passed descriptors: any process can listen on the name, and before trusted() checks the
  // listener, that process could pass a descriptor whose close() blocks. Linux before 6.16 does not
  // have this option.
  const int none = 0;
  if (fd >= 0) (void)::setsockopt(fd, SOL_SOCKET, kPassRights, &none, sizeof none);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&to), size) == 0) {
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
    return fd;
  }
  close_guarded(fd);
  return -1;
}

bool trusted(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

int connect_local(const SocketAddress& to) {
  const sockaddr_storage& address = to.storage;
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return -1;
  if (!of_this_machine(address)) return -1;
  for (const std::string& name : names(address)) {
    const int fd = connect_abstract(kPrefix + name);
    if (fd < 0) continue;
    if (trusted(fd)) return fd;
    close_guarded(fd);
    return -1;
  }
  return -1;
}

}  // namespace ors
