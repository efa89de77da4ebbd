// The listener, and the calls on established connections.
//
// Law: a socket that has not sent the listener's identity is a stranger. The number of strangers is
// limited, and nothing waits for a stranger.
#include "net.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "device.h"
#include "guarded.h"
#include "io/fork.h"
#include "log.h"
#include "net_comm.h"
#include "net_plan.h"

namespace ors::nccl {
namespace {

constexpr int kBacklog = 1024;          // the kernel may have a lower limit
constexpr int kMostAccepts = 64;        // sockets that one call accepts
constexpr size_t kMostStrangers = 256;  // sockets without a whole hello
constexpr size_t kMostArriving = 256;   // connections that lack sockets
constexpr int kMostWarnings = 8;        // about refused sockets, per listener

[[noreturn]] void throw_error(int error, const std::string& what) {
  throw std::system_error(error, std::system_category(), "net: " + what);
}

void set_any_port(SocketAddress* address) {
  if (address->storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address->storage).sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in&>(address->storage).sin_port = 0;
  }
}

class Listener {
 public:
  explicit Listener(const Device& device);

  Handle handle() const;
  // Null if no connection has all of its sockets yet.
  Comm* accept();

 private:
  struct Stranger {
    FileDescriptor fd;
    std::string name;
    std::array<uint8_t, kHelloBytes> hello{};
    size_t got = 0;
  };
  struct Arriving {
    Identity connection{};
    std::string name;
    std::vector<FileDescriptor> sockets;
    size_t missing = 0;
  };

  void accept_pending();
  void drop_oldest(const std::string& why);
  bool read_hello(Stranger* stranger);
  void arrive(Stranger* stranger);
  Arriving* find(const Hello& hello, const std::string& name);
  void refuse(const std::string& name, const std::string& why);

  const size_t threads_;  // of each connection
  FileDescriptor fd_;
  Identity identity_ = random_identity();
  std::deque<Stranger> strangers_;  // the oldest first
  std::deque<Arriving> arriving_;   // the oldest first
  int warnings_ = 0;
};

Listener::Listener(const Device& device)
    : threads_(plan_connection(device.vendor, net_settings()).threads) {
  SocketAddress address = device.address;
  set_any_port(&address);
  fd_ = FileDescriptor(open_guarded([&] {
    return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  }));
  if (!fd_.open()) throw_error(errno, "socket");
  // Accepted sockets inherit keepalive. A receiver never sends, so without keepalive it would not
  // notice that the sender's host is gone.
  set_keepalive(fd_.get());
  if (::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    const int error = errno;
    throw_error(error, "bind to " + address_text(address) + " of " + device.name);
  }
  if (::listen(fd_.get(), kBacklog) != 0) throw_error(errno, "listen");
}

Handle Listener::handle() const {
  Handle handle;
  handle.listener = identity_;
  handle.address.size = sizeof handle.address.storage;
  auto* address = reinterpret_cast<sockaddr*>(&handle.address.storage);
  if (::getsockname(fd_.get(), address, &handle.address.size) != 0)
    throw_error(errno, "getsockname");
  return handle;
}

Comm* Listener::accept() {
  accept_pending();
  for (Stranger& stranger : strangers_) {
    if (!read_hello(&stranger)) stranger.fd.reset();
  }
  const auto gone = [](const Stranger& stranger) { return !stranger.fd.open(); };
  strangers_.erase(std::remove_if(strangers_.begin(), strangers_.end(), gone), strangers_.end());
  for (auto at = arriving_.begin(); at != arriving_.end(); ++at) {
    if (at->missing > 0) continue;
    const size_t threads = std::min(threads_, at->sockets.size() - 1);
    auto comm = std::make_unique<ReceiveComm>(std::move(at->sockets), at->name, threads);
    arriving_.erase(at);
    return comm.release();
  }
  return nullptr;
}

void Listener::accept_pending() {
  for (int i = 0; i < kMostAccepts; ++i) {
    SocketAddress from;
    from.size = sizeof from.storage;
    const int fd = open_guarded([&] {
      return ::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (fd < 0 && errno == EAGAIN) return;
    const bool full = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (full && strangers_.empty()) throw_error(errno, "accept");
    if (full) drop_oldest("no file descriptor is left (ulimit -n)");
    if (strangers_.size() == kMostStrangers) {
      drop_oldest("at most " + std::to_string(kMostStrangers) + " may wait");
    }
    if (fd < 0) continue;  // out of descriptors, or the peer has closed the socket already
    Stranger stranger;
    stranger.fd = FileDescriptor(fd);
    stranger.name = address_text(from);
    strangers_.push_back(std::move(stranger));
  }
}

void Listener::drop_oldest(const std::string& why) {
  refuse(strangers_.front().name, "it is the oldest socket without a hello, and " + why);
  strangers_.pop_front();
}

// Reads the hello of a stranger. Returns whether the stranger must stay in the list.
bool Listener::read_hello(Stranger* stranger) {
  const ssize_t n = ::recv(stranger->fd.get(), stranger->hello.data() + stranger->got,
                           kHelloBytes - stranger->got, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  stranger->got += static_cast<size_t>(n);
  if (stranger->got == kHelloBytes) arrive(stranger);
  return stranger->got < kHelloBytes;
}

// Moves the socket to its connection, if its hello is good.
void Listener::arrive(Stranger* stranger) {
  Hello hello;
  const std::string wrong = unpack_hello(stranger->hello.data(), &hello);
  if (!wrong.empty()) return refuse(stranger->name, wrong);
  if (hello.listener != identity_) {
    return refuse(stranger->name, "its hello has the identity of another listener");
  }
  Arriving* to = find(hello, stranger->name);
  if (to->sockets.size() != hello.count || to->sockets[hello.index].open()) {
    return refuse(stranger->name, "it is socket " + std::to_string(hello.index) + " of " +
                                      std::to_string(hello.count) +
                                      ", expected one that is still missing of the connection's " +
                                      std::to_string(to->sockets.size()));
  }
  to->sockets[hello.index] = std::move(stranger->fd);
  --to->missing;
}

Listener::Arriving* Listener::find(const Hello& hello, const std::string& name) {
  for (Arriving& candidate : arriving_) {
    if (candidate.connection == hello.connection) return &candidate;
  }
  if (arriving_.size() == kMostArriving) {
    refuse(arriving_.front().name, "it is the oldest connection that lacks sockets, and at most " +
                                       std::to_string(kMostArriving) + " may wait");
    arriving_.pop_front();
  }
  arriving_.push_back(
      {hello.connection, name, std::vector<FileDescriptor>(hello.count), hello.count});
  return &arriving_.back();
}

void Listener::refuse(const std::string& name, const std::string& why) {
  if (warnings_++ < kMostWarnings) log_warning("net: a listener refuses " + name + ": " + why);
}

bool too_large(size_t size) {
  if (size <= kMaxNetBytes) return false;
  log_warning("net: a message of " + std::to_string(size) + " bytes: expected at most " +
              std::to_string(kMaxNetBytes));
  return true;
}

}  // namespace

const Device* find_device(int index) {
  const std::vector<Device>& all = devices();
  if (index >= 0 && static_cast<size_t>(index) < all.size()) return &all[index];
  log_warning("net: expected a device number below " + std::to_string(all.size()) + ", got " +
              std::to_string(index));
  return nullptr;
}

NetSettings& net_settings() {
  static NetSettings settings;
  return settings;
}

Result net_listen(int device, void* handle, void** listen_comm) {
  return guarded([&] {
    *listen_comm = nullptr;
    const Device* on = find_device(device);
    if (on == nullptr) return kInvalidArgument;
    auto listener = std::make_unique<Listener>(*on);
    pack_handle(listener->handle(), handle);
    *listen_comm = listener.release();
    return kSuccess;
  });
}

Result net_accept(void* listen_comm, void** receive_comm) {
  return guarded([&] {
    *receive_comm = nullptr;
    *receive_comm = static_cast<Listener*>(listen_comm)->accept();
    return kSuccess;
  });
}

Result net_close_listen(void* listen_comm) {
  return guarded([&] {
    delete static_cast<Listener*>(listen_comm);
    return kSuccess;
  });
}

Result net_isend(void* send_comm, const void* data, size_t size, void** request) {
  return guarded([&] {
    if (too_large(size)) return kInvalidArgument;
    // A SendComm only reads the memory.
    return static_cast<Comm*>(send_comm)->start(const_cast<void*>(data), size, request);
  });
}

Result net_irecv(void* receive_comm, void* data, size_t size, void** request) {
  return guarded([&] {
    if (too_large(size)) return kInvalidArgument;
    return static_cast<Comm*>(receive_comm)->start(data, size, request);
  });
}

Result net_test(void* request, int* done, size_t* size) {
  return guarded([&] {
    auto* message = static_cast<Request*>(request);
    return message->comm->test(message, done, size);
  });
}

Result net_close(void* comm) {
  return guarded([&] {
    delete static_cast<Comm*>(comm);
    return kSuccess;
  });
}

}  // namespace ors::nccl
