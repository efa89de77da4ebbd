// Strangers and peers that break the protocol, at both ends of the transport.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "net_ends.h"
#include "net_wire.h"

namespace ors::nccl {
namespace {

SocketAddress address_of(const Listening& listening) {
  Handle handle;
  CHECK(unpack_handle(listening.handle.data(), &handle).empty());
  return handle.address;
}

Identity identity_of(const Listening& listening) {
  Handle handle;
  CHECK(unpack_handle(listening.handle.data(), &handle).empty());
  return handle.listener;
}

int raw_connect(const SocketAddress& to) {
  const int fd = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.size) == 0);
  return fd;
}

void raw_write(int fd, const void* data, size_t size) {
  CHECK(::send(fd, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

Bytes packed(const Hello& hello) {
  Bytes bytes(kHelloBytes);
  pack_hello(hello, bytes.data());
  return bytes;
}

Bytes packed(uint64_t message, uint64_t total, uint64_t offset, uint32_t length) {
  Bytes bytes(kPieceBytes);
  pack_piece({message, total, offset, length}, bytes.data());
  return bytes;
}

// Hellos of a connection of one socket, each with one error.
std::vector<Bytes> bad_hellos(const Identity& listener) {
  const Hello good{listener, random_identity(), 0, 1};
  std::vector<Bytes> all;
  Hello hello = good;
  hello.listener[15] ^= 1;
  all.push_back(packed(hello));
  hello = good;
  hello.index = 1;
  all.push_back(packed(hello));
  hello = good;
  hello.count = 0;
  all.push_back(packed(hello));
  hello.count = kMaxNetSockets + 1;
  all.push_back(packed(hello));
  for (const size_t at : {size_t{0}, size_t{4}}) {  // magic, version
    all.push_back(packed(good));
    all.back()[at] ^= 1;
  }
  all.push_back(packed(good));
  all.back().resize(kHelloBytes - 1);
  const std::string http = "GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\n\r\n";
  all.push_back(Bytes(http.begin(), http.end()));
  return all;
}

bool was_closed(int fd) {
  uint8_t byte;
  const ssize_t n = ::recv(fd, &byte, 1, MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN);
}

void test_strangers() {
  const Listening listening;
  const size_t before = count_fds();
  std::vector<int> fds;
  for (const Bytes& hello : bad_hellos(identity_of(listening))) {
    fds.push_back(raw_connect(address_of(listening)));
    raw_write(fds.back(), hello.data(), hello.size());
  }
  void* nobody = nullptr;
  const auto start = Clock::now();
  while (seconds_since(start) < 0.2) {
    CHECK(net_accept(listening.comm, &nobody) == kSuccess && nobody == nullptr);
  }
  // The listener refuses all of them except the half hello.
  CHECK(std::count_if(fds.begin(), fds.end(), was_closed) ==
        static_cast<ptrdiff_t>(fds.size()) - 1);
  for (int i = 0; i < 300; ++i) {
    fds.push_back(raw_connect(address_of(listening)));
    CHECK(net_accept(listening.comm, &nobody) == kSuccess && nobody == nullptr);
  }
  CHECK(count_fds() <= before + fds.size() + 256);
  const Hello twice{identity_of(listening), random_identity(), 0, 2};
  for (int i = 0; i < 2; ++i) {  // the same socket twice does not complete a connection
    fds.push_back(raw_connect(address_of(listening)));
    raw_write(fds.back(), packed(twice).data(), kHelloBytes);
  }
  const Pair pair(listening);
  exchange(pair, 1 << 20, 5, false);
  CHECK(net_accept(listening.comm, &nobody) == kSuccess && nobody == nullptr);
  for (const int fd : fds) ::close(fd);
}

// A scripted sender, which knows the listener's identity and may break the protocol.
struct Liar {
  explicit Liar(size_t count) : fds(count) {
    const Listening listening;
    Hello hello{identity_of(listening), random_identity(), 0, static_cast<uint8_t>(count)};
    for (int& fd : fds) {
      fd = raw_connect(address_of(listening));
      raw_write(fd, packed(hello).data(), kHelloBytes);
      ++hello.index;
    }
    receive = accept_now(listening.comm);
  }
  ~Liar() {
    for (const int fd : fds) ::close(fd);
    CHECK(net_close(receive) == kSuccess);
  }
  void say(size_t socket, const Bytes& bytes) {
    raw_write(fds[socket], bytes.data(), bytes.size());
  }
  std::vector<int> fds;
  void* receive = nullptr;
};

// Receives of 100 bytes. The last bytes break the protocol; all bytes before are right. The other
// socket is still open, so only the broken bytes can end the connection.
void check_lie(const std::vector<Bytes>& words) {
  Liar liar(2);
  Bytes target(100);
  Bytes other(100);
  void* first = post_receive(liar.receive, &target);
  void* second = post_receive(liar.receive, &other);
  for (const Bytes& each : words) liar.say(0, each);
  int done = 0;
  Result result = kSuccess;
  wait_until([&] {
    if (!done) result = net_test(first, &done, nullptr);
    if (done) return (result = failure_of(second)) != kSuccess;
    return result != kSuccess;
  });
  CHECK(result == kRemoteError);
  check_dead(nullptr, liar.receive, kRemoteError);
}

void test_lies() {
  const Bytes ten(10);
  Bytes magic = packed(0, 10, 0, 10);
  magic[0] ^= 1;
  check_lie({magic});
  check_lie({packed(0, 10, 1, 10)});
  check_lie({packed(0, 10, ~uint64_t{0}, 5)});
  check_lie({packed(0, 10, 11, 0)});
  check_lie({packed(0, 10, 0, 0)});
  check_lie({packed(0, kMaxNetBytes + 1, 0, 10)});
  check_lie({packed(uint64_t{1} << 40, 10, 0, 10)});
  check_lie({packed(0, 20, 0, 10), ten, packed(0, 21, 10, 10)});
  check_lie({packed(0, 15, 0, 10), ten, packed(0, 15, 5, 10)});
  check_lie({packed(0, 10, 0, 10), ten, packed(0, 10, 0, 10)});
  check_lie({packed(0, 0, 0, 0), packed(0, 0, 0, 0)});
  check_lie({packed(1, 0, 0, 0), packed(1, 0, 0, 0)});
  check_lie({packed(1, 20, 0, 10), ten, packed(0, 10, 0, 10)});
}

// Pieces of two messages over two sockets, the last piece first, and one piece before its receive.
void test_pieces_out_of_order() {
  Liar liar(2);
  const Bytes whole = pattern(100, 1);
  const auto part = [&](size_t from, size_t to) {
    return Bytes(whole.begin() + static_cast<ptrdiff_t>(from),
                 whole.begin() + static_cast<ptrdiff_t>(to));
  };
  Bytes target(100);
  Bytes later(100, 0x55);
  void* first = post_receive(liar.receive, &target);
  liar.say(1, packed(0, 100, 60, 40));
  liar.say(1, part(60, 100));
  liar.say(1, packed(1, 100, 0, 30));  // not posted yet
  liar.say(1, part(0, 30));
  for (int i = 0; i < 100; ++i) CHECK(!is_done(first));
  liar.say(0, packed(0, 100, 0, 10));
  liar.say(0, part(0, 10));
  for (int i = 0; i < 100; ++i) CHECK(!is_done(first));
  liar.say(0, packed(0, 100, 10, 50));
  liar.say(0, part(10, 60));
  CHECK(finish(first) == 100 && target == whole);
  void* second = post_receive(liar.receive, &later);
  liar.say(0, packed(1, 100, 30, 70));
  liar.say(0, part(30, 100));
  CHECK(finish(second) == 100 && later == whole);
}

// A later message is complete before an earlier message begins.
void test_messages_out_of_order() {
  Liar liar(2);
  std::array<Bytes, 2> targets = {Bytes(10), Bytes(10)};
  void* first = post_receive(liar.receive, &targets[0]);
  void* second = post_receive(liar.receive, &targets[1]);
  liar.say(1, packed(1, 10, 0, 10));
  liar.say(1, pattern(10, 1));
  CHECK(finish(second) == 10 && targets[1] == pattern(10, 1));
  CHECK(!is_done(first));
  liar.say(0, packed(0, 10, 0, 10));
  liar.say(0, pattern(10, 0));
  CHECK(finish(first) == 10 && targets[0] == pattern(10, 0));
}

// A piece of a message whose place in requests_ belongs to a later message already.
void test_a_late_piece() {
  Liar liar(2);
  Bytes target(10);
  for (uint64_t i = 0; i < kNetRequests; ++i) {
    liar.say(0, packed(i, 0, 0, 0));
    CHECK(finish(post_receive(liar.receive, &target)) == 0);
  }
  void* request = post_receive(liar.receive, &target);
  liar.say(1, packed(0, 10, 0, 10));
  liar.say(1, pattern(10, 1));
  CHECK(failure_of(request) == kRemoteError);
  CHECK(target == Bytes(10));
}

// All sockets end before a message is complete, or one socket ends inside a header or a piece.
void test_ends() {
  for (const size_t said : {size_t{0}, size_t{1}, kPieceBytes, kPieceBytes + 9}) {
    Liar liar(2);
    Bytes target(100);
    void* request = post_receive(liar.receive, &target);
    Bytes words = packed(0, 20, 0, 10);
    words.resize(said);
    liar.say(0, words);
    CHECK(!is_done(request));
    CHECK(::shutdown(liar.fds[0], SHUT_WR) == 0);
    if (said == 0) CHECK(::shutdown(liar.fds[1], SHUT_WR) == 0);
    CHECK(failure_of(request, 2) == kRemoteError);
  }
}

// A reset socket fails the connection, since bytes may be lost with it.
void test_reset() {
  Liar liar(2);
  Bytes target(100);
  void* request = post_receive(liar.receive, &target);
  CHECK(!is_done(request));
  const linger at_once{1, 0};
  CHECK(::setsockopt(liar.fds[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  ::close(liar.fds[0]);
  liar.fds[0] = liar.fds[1];
  liar.fds.pop_back();
  CHECK(failure_of(request, 2) == kRemoteError);
}

// A socket that is parked at a later message cannot carry the rest of an earlier message.
void test_end_beside_a_parked_socket() {
  Liar liar(2);
  Bytes target(100);
  void* request = post_receive(liar.receive, &target);
  liar.say(0, packed(1, 10, 0, 10));
  for (int i = 0; i < 100; ++i) CHECK(!is_done(request));
  CHECK(::shutdown(liar.fds[1], SHUT_WR) == 0);
  CHECK(failure_of(request, 2) == kRemoteError);
}

// A scripted receiver reads only one of two sockets, and most pieces use that socket.
void test_slow_socket() {
  const Listening address;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SocketAddress at = address_of(address);
  CHECK(at.storage.ss_family == AF_INET);
  reinterpret_cast<sockaddr_in&>(at.storage).sin_port = 0;
  CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&at.storage), at.size) == 0);
  CHECK(::listen(listener, 4) == 0);
  CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&at.storage), &at.size) == 0);
  HandleBytes handle;
  pack_handle({at, random_identity()}, handle.data());
  net_settings().sockets = 2;
  void* send = connect_now(handle);
  set_net();
  const int small = test_threads > 0 ? ::accept(listener, nullptr, nullptr) : -1;
  const int idle = ::accept(listener, nullptr, nullptr);
  const int busy = ::accept(listener, nullptr, nullptr);
  const Bytes source(64 << 20);
  void* request = post_send(send, source);
  Bytes scratch(1 << 20);
  size_t got = 0;
  bool sent = false;
  wait_until([&] {
    sent = sent || is_done(request);
    const ssize_t n = ::recv(busy, scratch.data(), scratch.size(), MSG_DONTWAIT);
    got += n > 0 ? static_cast<size_t>(n) : 0;
    return got > source.size() / 10 * 6;
  });
  CHECK(net_close(send) == kSuccess);
  for (const int fd : {listener, small, idle, busy}) ::close(fd);
}

void test_all() {
  test_strangers();
  test_lies();
  test_pieces_out_of_order();
  test_messages_out_of_order();
  test_a_late_piece();
  test_ends();
  test_reset();
  test_end_beside_a_parked_socket();
  test_slow_socket();
}

}  // namespace
}  // namespace ors::nccl

int main() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::alarm(300);
  ors::nccl::with_and_without_threads(ors::nccl::test_all);
}
