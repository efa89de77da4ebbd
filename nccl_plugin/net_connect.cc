// An attempt to connect. NCCL calls connect until it gets a communicator; between these calls, the
// handle holds a pointer to the attempt.
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "guarded.h"
#include "log.h"
#include "net.h"
#include "net_comm.h"
#include "net_plan.h"

namespace ors::nccl {
namespace {

// Sets the scope of a link-local address: the number of an interface on this host.
void set_scope(SocketAddress* address, const Device& device) {
  if (address->storage.ss_family != AF_INET6) return;
  auto& in = reinterpret_cast<sockaddr_in6&>(address->storage);
  if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr))
    in.sin6_scope_id = ::if_nametoindex(device.name.c_str());
}

// Maximum bytes that a socket accepts beyond those in flight. Without this limit a slow socket
// accepts megabytes of pieces that a fast socket could carry: four sockets over loopback
// reached 3.1 GB/s, less than one socket, and 4.2 GB/s with the limit. SO_SNDBUF would also limit
// the bytes in flight.
constexpr int kUnsentBytes = 512 << 10;

// Connects several sockets; each sends its hello as soon as it is connected.
class Attempt {
 public:
  Attempt(const Handle& handle, size_t piece, const NetPlan& plan);

  // kSuccess without a comm: the attempt is not complete yet.
  Result advance(Comm** comm);

 private:
  struct Socket {
    FileDescriptor fd;
    bool connected = false;
    std::array<uint8_t, kHelloBytes> hello{};
    size_t said = 0;
  };

  Result advance(Socket* socket);
  Result failed(const char* what, int error) const;

  const Handle handle_;
  const size_t piece_;
  const size_t threads_;
  std::vector<Socket> sockets_;
};

Attempt::Attempt(const Handle& handle, size_t piece, const NetPlan& plan)
    : handle_(handle),
      piece_(std::clamp<size_t>(piece, 1, kMaxNetBytes)),
      threads_(plan.threads),
      sockets_(plan.sockets) {
  Hello hello{handle.listener, random_identity(), 0, static_cast<uint8_t>(sockets_.size())};
  for (Socket& socket : sockets_) {
    pack_hello(hello, socket.hello.data());
    ++hello.index;
  }
}

Result Attempt::advance(Comm** comm) {
  bool ready = true;
  for (Socket& socket : sockets_) {
    if (const Result result = advance(&socket); result != kSuccess) return result;
    ready = ready && socket.said == kHelloBytes;
  }
  if (!ready) return kSuccess;
  std::vector<FileDescriptor> descriptors;
  for (Socket& socket : sockets_) descriptors.push_back(std::move(socket.fd));
  const std::string peer = address_text(handle_.address);
  const size_t count = descriptors.size();
  log_info("net: connected to " + peer + " with " + std::to_string(count) + " sockets and " +
           std::to_string(threads_) + " threads");
  *comm = new SendComm(std::move(descriptors), peer, piece_, threads_);
  return kSuccess;
}

Result Attempt::advance(Socket* socket) {
  if (!socket->fd.open()) {
    int error = 0;
    socket->fd = FileDescriptor(begin_connect(handle_.address, "", nullptr, &error));
    if (!socket->fd.open()) return failed("connect", error);
    (void)::setsockopt(socket->fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
                       sizeof kUnsentBytes);
  }
  if (!socket->connected) {
    const int error = connect_result(socket->fd.get());
    if (error == EINPROGRESS) return kSuccess;
    if (error != 0) return failed("connect", error);
    socket->connected = true;
  }
  if (socket->said == kHelloBytes) return kSuccess;
  const ssize_t n = ::send(socket->fd.get(), socket->hello.data() + socket->said,
                           kHelloBytes - socket->said, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? kSuccess : failed("say hello", errno);
  socket->said += static_cast<size_t>(n);
  return kSuccess;
}

Result Attempt::failed(const char* what, int error) const {
  log_warning("net: cannot " + std::string(what) + " to " + address_text(handle_.address) + ": " +
              error_text(error));
  const bool ours = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
                    error == EADDRNOTAVAIL;
  return ours ? kSystemError : kRemoteError;
}

Result begin(int device, const void* handle, std::unique_ptr<Attempt>* attempt) {
  const Device* from = find_device(device);
  if (from == nullptr) return kInvalidArgument;
  Handle to;
  const std::string wrong = unpack_handle(handle, &to);
  if (!wrong.empty()) {
    log_warning("net: cannot connect: " + wrong);
    return kInvalidArgument;
  }
  set_scope(&to.address, *from);
  const NetSettings& settings = net_settings();
  *attempt = std::make_unique<Attempt>(to, settings.piece, plan_connection(from->vendor, settings));
  return kSuccess;
}

}  // namespace

Result net_connect(int device, void* handle, void** send_comm) {
  return guarded([&] {
    *send_comm = nullptr;
    void* state = nullptr;
    if (!load_state(handle, &state)) {
      log_warning("net: cannot connect: the handle has a state that this process did not store");
      return kInvalidArgument;
    }
    std::unique_ptr<Attempt> attempt(static_cast<Attempt*>(state));
    store_state(handle, nullptr);
    if (attempt == nullptr) {
      if (const Result result = begin(device, handle, &attempt); result != kSuccess) return result;
    }
    Comm* comm = nullptr;
    const Result result = attempt->advance(&comm);
    if (result == kSuccess && comm == nullptr) store_state(handle, attempt.release());
    *send_comm = comm;
    return result;
  });
}

}  // namespace ors::nccl
