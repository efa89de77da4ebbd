// The point-to-point transport over loopback: the list of aws-ofi-nccl's functional tests, and
// strangers, liars and the dead. Most tests hold both ends of a connection and serve them in turns.
#include "net.h"

#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "device.h"
#include "net_wire.h"

namespace {

using namespace ors::nccl;
using ors::SocketAddress;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

constexpr double kPatience = 30;  // seconds, for what should be at once: the machine is shared

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_until(const std::function<bool()>& reached, double seconds = kPatience) {
  const auto start = Clock::now();
  while (!reached()) CHECK(seconds_since(start) < seconds);
}

Bytes pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < size; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + i, &state, std::min<size_t>(8, size - i));
  }
  return bytes;
}

size_t count_fds() {
  DIR* folder = ::opendir("/proc/self/fd");
  CHECK(folder != nullptr);
  size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

using HandleBytes = std::array<uint8_t, kHandleBytes>;

struct Listening {
  Listening() { CHECK(net_listen(0, handle.data(), &comm) == kSuccess && comm != nullptr); }
  ~Listening() { CHECK(net_close_listen(comm) == kSuccess); }
  Listening(const Listening&) = delete;
  HandleBytes handle;
  void* comm = nullptr;
};

void* connect_now(HandleBytes handle) {
  void* comm = nullptr;
  wait_until([&] {
    CHECK(net_connect(0, handle.data(), &comm) == kSuccess);
    return comm != nullptr;
  });
  return comm;
}

void* accept_now(void* listener) {
  void* comm = nullptr;
  wait_until([&] {
    CHECK(net_accept(listener, &comm) == kSuccess);
    return comm != nullptr;
  });
  return comm;
}

// Both ends of one connection.
struct Pair {
  explicit Pair(const Listening& listening)
      : send(connect_now(listening.handle)), receive(accept_now(listening.comm)) {}
  Pair() : Pair(Listening()) {}
  ~Pair() {
    if (send != nullptr) CHECK(net_close_send(send) == kSuccess);
    if (receive != nullptr) CHECK(net_close_receive(receive) == kSuccess);
  }
  Pair(const Pair&) = delete;
  void* send = nullptr;
  void* receive = nullptr;
};

void* post_send(void* comm, const Bytes& data) {
  void* request = nullptr;
  CHECK(net_isend(comm, data.data(), data.size(), &request) == kSuccess);
  return request;
}

void* post_receive(void* comm, Bytes* data) {
  void* request = nullptr;
  CHECK(net_irecv(comm, data->data(), data->size(), &request) == kSuccess);
  return request;
}

bool is_done(void* request, size_t* size = nullptr) {
  int done = -1;
  CHECK(net_test(request, &done, size) == kSuccess);
  CHECK(done == 0 || done == 1);
  return done == 1;
}

// The size that the test reported.
size_t finish(void* request) {
  size_t size = ~size_t{0};
  wait_until([&] { return is_done(request, &size); });
  return size;
}

// Polls until a request fails, and returns how.
Result failure_of(void* request, double seconds = kPatience) {
  Result result = kSuccess;
  wait_until(
      [&] {
        int done = 0;
        result = net_test(request, &done, nullptr);
        CHECK(done == 0);
        return result != kSuccess;
      },
      seconds);
  return result;
}

void check_dead(void* send, void* receive, Result how) {
  Bytes data(8);
  void* request = nullptr;
  if (send != nullptr) CHECK(net_isend(send, data.data(), 8, &request) == how);
  if (receive != nullptr) CHECK(net_irecv(receive, data.data(), 8, &request) == how);
  CHECK(request == nullptr);
}

// Sends one message and receives it, posted in either order.
void exchange(const Pair& pair, size_t size, uint64_t seed, bool send_first) {
  const Bytes source = pattern(size, seed);
  Bytes target(size, 0xAA);
  void* send = send_first ? post_send(pair.send, source) : nullptr;
  void* receive = post_receive(pair.receive, &target);
  if (!send_first) send = post_send(pair.send, source);
  CHECK(send != nullptr && receive != nullptr);
  size_t sent = 0;
  size_t received = 0;
  bool send_done = false;
  bool receive_done = false;
  wait_until([&] {
    send_done = send_done || is_done(send, &sent);
    receive_done = receive_done || is_done(receive, &received);
    return send_done && receive_done;
  });
  CHECK(sent == size && received == size);
  CHECK(source == target);
}

std::vector<size_t> sizes() {
  const size_t piece = net_settings().piece;
  return {0, 1, 31, 32, 33, 1024, piece - 1, piece, piece + 1, 7 * piece + 3, 1 << 20, 64 << 20};
}

void test_sizes() {
  for (const int sockets : {1, 4, 16}) {
    net_settings().sockets = sockets;
    const Pair there;
    const Pair back;
    uint64_t seed = 0;
    for (const size_t size : sizes()) {
      exchange(there, size, ++seed, true);
      exchange(back, size, ++seed, false);
    }
  }
  net_settings() = {3, 1000};
  exchange(Pair(), 1'000'001, 1, true);
  net_settings() = NetSettings();
}

// Both directions of two connections at once.
void test_both_directions() {
  const Pair there;
  const Pair back;
  const std::array<const Pair*, 2> pairs = {&there, &back};
  const size_t size = 64 << 20;
  std::array<Bytes, 2> sources = {pattern(size, 1), pattern(size, 2)};
  std::array<Bytes, 2> targets = {Bytes(size), Bytes(size)};
  std::vector<void*> requests;
  for (size_t i = 0; i < 2; ++i) {
    requests.push_back(post_send(pairs[i]->send, sources[i]));
    requests.push_back(post_receive(pairs[i]->receive, &targets[i]));
  }
  wait_until([&] {
    requests.erase(std::remove_if(requests.begin(), requests.end(),
                                  [](void* request) { return is_done(request); }),
                   requests.end());
    return requests.empty();
  });
  CHECK(sources == targets);
}

// All requests in flight, polled in an order of no sense; one more is not taken until one is done.
void test_many_in_flight(size_t size) {
  const Pair pair;
  std::vector<Bytes> sources;
  std::vector<Bytes> targets(kNetRequests, Bytes(size));
  std::vector<void*> sends;
  std::vector<void*> receives;
  for (size_t i = 0; i < kNetRequests; ++i) sources.push_back(pattern(size + i, i));
  for (size_t i = 0; i < kNetRequests; ++i) {
    targets[i].resize(size + i);
    sends.push_back(post_send(pair.send, sources[i]));
    CHECK(sends.back() != nullptr);
  }
  CHECK(post_send(pair.send, sources[0]) == nullptr);
  for (Bytes& target : targets) receives.push_back(post_receive(pair.receive, &target));
  CHECK(std::count(receives.begin(), receives.end(), nullptr) == 0);
  CHECK(post_receive(pair.receive, &targets[0]) == nullptr);
  size_t left = 2 * kNetRequests;
  wait_until([&] {
    for (size_t i = 0; i < kNetRequests; ++i) {
      const size_t at = (i * 19 + 7) % kNetRequests;
      size_t got = 0;
      if (sends[at] != nullptr && is_done(sends[at], &got)) {
        CHECK(got == size + at);
        sends[at] = nullptr;
        --left;
      }
      if (receives[at] != nullptr && is_done(receives[at], &got)) {
        CHECK(got == size + at);
        receives[at] = nullptr;
        --left;
      }
    }
    return left == 0;
  });
  CHECK(sources == targets);
  exchange(pair, 1000, 99, true);
}

// Sends run ahead of the receives, by more messages than there are requests.
void test_early_messages() {
  const Pair pair;
  constexpr size_t kCount = 500;
  for (size_t i = 0; i < kCount; ++i) CHECK(finish(post_send(pair.send, pattern(i, i))) == i);
  for (size_t i = 0; i < kCount; ++i) {
    Bytes target(kCount);
    const size_t size = finish(post_receive(pair.receive, &target));
    CHECK(size == i);
    target.resize(size);
    CHECK(target == pattern(i, i));
  }
}

void test_receive_larger_than_send() {
  const Pair pair;
  for (const size_t size : {size_t{0}, size_t{100}, size_t{1} << 20}) {
    const Bytes source = pattern(size, size);
    Bytes target(size + 1000, 0x55);
    void* receive = post_receive(pair.receive, &target);
    void* send = post_send(pair.send, source);
    size_t sent = 0;
    size_t received = 0;
    bool is_sent = false;
    bool is_received = false;
    wait_until([&] {
      is_sent = is_sent || is_done(send, &sent);
      is_received = is_received || is_done(receive, &received);
      return is_sent && is_received;
    });
    CHECK(sent == size && received == size);
    CHECK(std::equal(source.begin(), source.end(), target.begin()));
    CHECK(std::count(target.begin() + static_cast<ptrdiff_t>(size), target.end(), 0x55) == 1000);
  }
}

void test_send_larger_than_receive() {
  const Pair pair;
  Bytes small(100, 0x55);
  Bytes second(1000);
  void* receive = post_receive(pair.receive, &small);
  void* other = post_receive(pair.receive, &second);
  const Bytes source = pattern(101, 1);
  const Bytes large = pattern(64 << 20, 2);
  CHECK(finish(post_send(pair.send, source)) == 101);
  CHECK(failure_of(receive) == kInternalError);
  CHECK(failure_of(other) == kInternalError);
  CHECK(small == Bytes(100, 0x55));
  check_dead(nullptr, pair.receive, kInternalError);
  void* request = nullptr;  // the sender is told too
  if (net_isend(pair.send, large.data(), large.size(), &request) == kSuccess) {
    CHECK(failure_of(request) == kRemoteError);
  }
  check_dead(pair.send, nullptr, kRemoteError);
}

void test_too_large() {
  const Pair pair;
  uint8_t byte = 0;
  void* request = nullptr;
  CHECK(net_isend(pair.send, &byte, kMaxNetBytes + 1, &request) == kInvalidArgument);
}

void test_bad_arguments() {
  HandleBytes handle{};
  void* comm = nullptr;
  CHECK(net_listen(-1, handle.data(), &comm) == kInvalidArgument);
  CHECK(net_listen(static_cast<int>(devices().size()), handle.data(), &comm) == kInvalidArgument);
  CHECK(net_connect(0, handle.data(), &comm) == kInvalidArgument);
  {
    const Listening listening;
    handle = listening.handle;
    CHECK(net_connect(-1, handle.data(), &comm) == kInvalidArgument);
  }
  Result result = kSuccess;  // nobody listens there any more
  wait_until([&] { return (result = net_connect(0, handle.data(), &comm)) != kSuccess; });
  CHECK(result == kRemoteError && comm == nullptr && load_state(handle.data()) == nullptr);
}

void test_reuse_of_a_listener() {
  const Listening listening;
  for (uint64_t i = 0; i < 3; ++i) exchange(Pair(listening), 300000, i, true);
  // At once, with their sockets interleaved.
  std::array<HandleBytes, 3> handles = {listening.handle, listening.handle, listening.handle};
  std::array<void*, 3> senders{};
  wait_until([&] {
    size_t ready = 0;
    for (size_t i = 0; i < 3; ++i) {
      if (senders[i] == nullptr) {
        CHECK(net_connect(0, handles[i].data(), &senders[i]) == kSuccess);
      }
      ready += senders[i] != nullptr;
    }
    return ready == 3;
  });
  std::array<Bytes, 3> sources;
  for (size_t i = 0; i < 3; ++i) {
    sources[i] = pattern(300000, 100 + i);
    sources[i][0] = static_cast<uint8_t>(i);
    CHECK(post_send(senders[i], sources[i]) != nullptr);
  }
  for (size_t i = 0; i < 3; ++i) {
    void* receiver = accept_now(listening.comm);
    Bytes target(300000);
    CHECK(finish(post_receive(receiver, &target)) == 300000);
    CHECK(target[0] < 3 && target == sources[target[0]]);
    sources[target[0]].clear();
    CHECK(net_close_receive(receiver) == kSuccess);
  }
  for (void* sender : senders) CHECK(net_close_send(sender) == kSuccess);
}

// What was sent before the close arrives, also for receives that are posted after it.
void test_close_after_send() {
  Pair pair;
  for (size_t i = 0; i < 8; ++i) finish(post_send(pair.send, pattern(20000 * i, i)));
  CHECK(net_close_send(pair.send) == kSuccess);
  pair.send = nullptr;
  for (size_t i = 0; i < 8; ++i) {
    Bytes target(20000 * i);
    CHECK(finish(post_receive(pair.receive, &target)) == target.size());
    CHECK(target == pattern(target.size(), i));
  }
  check_dead(nullptr, pair.receive, kRemoteError);
}

// A close that finds requests in flight is at once, and the memory is the caller's again.
void test_close_in_flight(bool sender_first) {
  Pair pair;
  const Bytes source = pattern(64 << 20, 3);
  Bytes target(source.size(), 0);
  void* send = post_send(pair.send, source);
  void* receive = post_receive(pair.receive, &target);
  void* second = post_receive(pair.receive, &target);
  for (int i = 0; i < 20; ++i) {
    CHECK(!is_done(send));
    CHECK(!is_done(receive));
  }
  const auto start = Clock::now();
  if (sender_first) {
    CHECK(net_close_send(pair.send) == kSuccess);
    pair.send = nullptr;
    CHECK(failure_of(receive) == kRemoteError);
    CHECK(failure_of(second) == kRemoteError);
    check_dead(nullptr, pair.receive, kRemoteError);
  } else {
    CHECK(net_close_receive(pair.receive) == kSuccess);
    pair.receive = nullptr;
    const Bytes before = target;
    CHECK(failure_of(send) == kRemoteError);
    CHECK(target == before);
    check_dead(pair.send, nullptr, kRemoteError);
  }
  CHECK(seconds_since(start) < 10);
}

void test_cycles_leak_nothing() {
  exchange(Pair(), 10, 1, true);
  const size_t before = count_fds();
  for (int i = 0; i < 200; ++i) {
    const Pair pair;
    if (i % 2 == 0) exchange(pair, 1000, 1, i % 4 == 0);
  }
  const Listening listening;  // attempts that nobody accepted
  void* sender = connect_now(listening.handle);
  CHECK(net_close_send(sender) == kSuccess);
  CHECK(count_fds() == before + 1);
}

// --- other processes ---

using Body = std::function<void()>;

// A child that ends with 0 if its body returns.
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child > 0) return child;
  ::alarm(120);
  body();
  ::_exit(0);
}

void join(pid_t child) {
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void kill_now(pid_t child) {
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
}

// Memory that children share.
struct Board {
  std::atomic<int> ready{0};
  std::array<HandleBytes, 8> handles;
};

Board* make_board() {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return new (memory) Board;
}

void ring_member(Board* board, size_t rank, size_t world) {
  void* listener = nullptr;
  CHECK(net_listen(0, board->handles[rank].data(), &listener) == kSuccess);
  ++board->ready;
  wait_until([&] { return board->ready == static_cast<int>(world); });
  void* send = connect_now(board->handles[(rank + 1) % world]);
  void* receive = accept_now(listener);
  CHECK(net_close_listen(listener) == kSuccess);
  Bytes mine = pattern(300000, rank);
  for (size_t step = 1; step <= 4 * world; ++step) {
    Bytes next(mine.size());
    void* out = post_send(send, mine);
    void* in = post_receive(receive, &next);
    bool sent = false;
    bool received = false;
    wait_until([&] {
      sent = sent || is_done(out);
      received = received || is_done(in);
      return sent && received;
    });
    CHECK(next == pattern(next.size(), (rank + 4 * world - step) % world));
    mine = next;
  }
  CHECK(net_close_send(send) == kSuccess && net_close_receive(receive) == kSuccess);
}

void test_ring() {
  Board* board = make_board();
  std::vector<pid_t> children;
  for (size_t rank = 0; rank < 4; ++rank) {
    children.push_back(start([=] { ring_member(board, rank, 4); }));
  }
  for (const pid_t child : children) join(child);
}

[[noreturn]] void send_for_ever(const HandleBytes& handle) {
  void* send = connect_now(handle);
  const Bytes data = pattern(4 << 20, 1);
  for (;;) {
    if (void* request = post_send(send, data)) finish(request);
  }
}

void test_killed_sender() {
  const Listening listening;
  const pid_t child = start([&] { send_for_ever(listening.handle); });
  void* receive = accept_now(listening.comm);
  Bytes target(4 << 20);
  CHECK(finish(post_receive(receive, &target)) == target.size());
  std::vector<Bytes> targets(16, target);
  std::vector<void*> requests;
  for (Bytes& each : targets) requests.push_back(post_receive(receive, &each));
  kill_now(child);
  const auto dead = Clock::now();
  size_t failed = 0;
  for (void* request : requests) {  // some may have come whole
    int done = 0;
    Result result = kSuccess;
    wait_until([&] { return (result = net_test(request, &done, nullptr)) != kSuccess || done; });
    CHECK(done || result == kRemoteError);
    failed += !done;
  }
  CHECK(failed > 0 && seconds_since(dead) < 2);
  check_dead(nullptr, receive, kRemoteError);
  CHECK(net_close_receive(receive) == kSuccess);
}

// The child dies while it sends nothing: the only sign is the end of its sockets.
void test_killed_idle_sender() {
  const Listening listening;
  const pid_t child = start([&] {
    void* send = connect_now(listening.handle);
    finish(post_send(send, Bytes(10)));
    for (;;) ::pause();
  });
  void* receive = accept_now(listening.comm);
  Bytes target(10);
  CHECK(finish(post_receive(receive, &target)) == 10);
  void* request = post_receive(receive, &target);
  CHECK(!is_done(request));
  kill_now(child);
  CHECK(failure_of(request, 2) == kRemoteError);
  check_dead(nullptr, receive, kRemoteError);
  CHECK(net_close_receive(receive) == kSuccess);
}

// A child that accepts one connection and reads `messages` of 10 bytes, then nothing.
pid_t start_receiver(Board* board, int messages) {
  const pid_t child = start([=] {
    void* listener = nullptr;
    CHECK(net_listen(0, board->handles[0].data(), &listener) == kSuccess);
    board->ready = 1;
    void* receive = accept_now(listener);
    Bytes target(10);
    for (int i = 0; i < messages; ++i) finish(post_receive(receive, &target));
    board->ready = 2;
    for (;;) ::pause();
  });
  wait_until([&] { return board->ready == 1; });
  return child;
}

void test_killed_receiver() {
  for (const bool busy : {true, false}) {
    Board* board = make_board();
    const pid_t child = start_receiver(board, 1);
    void* send = connect_now(board->handles[0]);
    finish(post_send(send, Bytes(10)));
    wait_until([&] { return board->ready == 2; });
    const Bytes source(64 << 20);
    void* request = busy ? post_send(send, source) : nullptr;
    if (busy) {
      for (int i = 0; i < 100; ++i) CHECK(!is_done(request));
    }
    kill_now(child);
    if (busy) CHECK(failure_of(request, 2) == kRemoteError);
    check_dead(send, nullptr, kRemoteError);
    CHECK(net_close_send(send) == kSuccess);
  }
}

// Times calls, for the law that none blocks.
class Stopwatch {
 public:
  template <class Call>
  auto time(const Call& call) {
    const auto start = Clock::now();
    const auto result = call();
    const double took = seconds_since(start);
    ++calls_;
    slow_ += took > 0.001;
    longest_ = std::max(longest_, took);
    return result;
  }
  void judge(const char* what) const {
    std::printf("%s: %d calls, %d above 1 ms, longest %.2f ms\n", what, calls_, slow_,
                longest_ * 1000);
    CHECK(longest_ < 0.05);
  }

 private:
  int calls_ = 0;
  int slow_ = 0;
  double longest_ = 0;
};

void test_stopped_receiver() {
  Board* board = make_board();
  const pid_t child = start_receiver(board, 0);
  void* send = connect_now(board->handles[0]);
  wait_until([&] { return board->ready == 2; });
  CHECK(::kill(child, SIGSTOP) == 0);
  const Bytes source = pattern(4 << 20, 1);
  std::vector<void*> requests;
  Stopwatch watch;
  for (size_t i = 0; i < kNetRequests; ++i) {
    requests.push_back(watch.time([&] { return post_send(send, source); }));
    CHECK(requests.back() != nullptr);
  }
  const auto start = Clock::now();
  while (seconds_since(start) < 1) {
    for (size_t i = kNetRequests / 2; i < kNetRequests; ++i) {
      CHECK(!watch.time([&] { return is_done(requests[i]); }));
    }
  }
  watch.judge("a sender whose receiver is stopped");
  CHECK(net_close_send(send) == kSuccess);
  kill_now(child);
}

void test_stopped_sender() {
  const Listening listening;
  const pid_t child = start([&] { send_for_ever(listening.handle); });
  void* receive = accept_now(listening.comm);
  Bytes target(4 << 20);
  CHECK(finish(post_receive(receive, &target)) == target.size());
  CHECK(::kill(child, SIGSTOP) == 0);
  std::vector<Bytes> targets(kNetRequests, target);
  Stopwatch watch;
  std::vector<void*> requests;
  for (Bytes& each : targets) {
    requests.push_back(watch.time([&] { return post_receive(receive, &each); }));
  }
  const auto start = Clock::now();
  while (seconds_since(start) < 1) {
    for (size_t i = kNetRequests / 2; i < kNetRequests; ++i) {
      CHECK(!watch.time([&] { return is_done(requests[i]); }));
    }
  }
  watch.judge("a receiver whose sender is stopped");
  CHECK(::kill(child, SIGCONT) == 0);
  finish(requests[0]);
  CHECK(net_close_receive(receive) == kSuccess);
  kill_now(child);
}

// --- peers that are none ---

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

// The hello of a whole connection of one socket, but for one thing each.
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
  // All but the half hello.
  CHECK(std::count_if(fds.begin(), fds.end(), was_closed) ==
        static_cast<ptrdiff_t>(fds.size()) - 1);
  for (int i = 0; i < 300; ++i) {
    fds.push_back(raw_connect(address_of(listening)));
    CHECK(net_accept(listening.comm, &nobody) == kSuccess && nobody == nullptr);
  }
  CHECK(count_fds() <= before + fds.size() + 256);
  const Hello twice{identity_of(listening), random_identity(), 0, 2};
  for (int i = 0; i < 2; ++i) {  // the same socket twice is no connection
    fds.push_back(raw_connect(address_of(listening)));
    raw_write(fds.back(), packed(twice).data(), kHelloBytes);
  }
  const Pair pair(listening);
  exchange(pair, 1 << 20, 5, false);
  CHECK(net_accept(listening.comm, &nobody) == kSuccess && nobody == nullptr);
  for (const int fd : fds) ::close(fd);
}

// A sender of our own making, which knows the listener's identity and then does what it likes.
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
    CHECK(net_close_receive(receive) == kSuccess);
  }
  void say(size_t socket, const Bytes& bytes) {
    raw_write(fds[socket], bytes.data(), bytes.size());
  }
  std::vector<int> fds;
  void* receive = nullptr;
};

// Receives of 100 bytes; the last words are wrong, what was said before is not. The other socket
// could still bring what is missing: nothing but the lie ends the connection.
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

// Pieces of two messages over two sockets, the end first, one of them before its receive is there.
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

// A later message is whole before an earlier one has begun.
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

// A piece of a message whose place another has taken since.
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

// The end of all sockets before a message is whole, or of one within a header or a piece.
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

// Bytes may be lost with it, whatever the other socket brings.
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

// A socket that is parked at a later message cannot bring the rest of an earlier one.
void test_end_beside_a_parked_socket() {
  Liar liar(2);
  Bytes target(100);
  void* request = post_receive(liar.receive, &target);
  liar.say(0, packed(1, 10, 0, 10));
  for (int i = 0; i < 100; ++i) CHECK(!is_done(request));
  CHECK(::shutdown(liar.fds[1], SHUT_WR) == 0);
  CHECK(failure_of(request, 2) == kRemoteError);
}

// A receiver of our own making that reads only one of two sockets: most pieces come there.
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
  net_settings() = NetSettings();
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
  CHECK(net_close_send(send) == kSuccess);
  for (const int fd : {listener, idle, busy}) ::close(fd);
}

// Two threads at each connection, one for each end.
void test_threads() {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      for (int cycle = 0; cycle < 3; ++cycle) {
        const Pair pair;
        std::thread sender([&] {
          for (uint64_t i = 0; i < 10; ++i) finish(post_send(pair.send, pattern(500000, t + i)));
        });
        for (uint64_t i = 0; i < 10; ++i) {
          Bytes target(500000);
          finish(post_receive(pair.receive, &target));
          CHECK(target == pattern(500000, t + i));
        }
        sender.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::alarm(600);
  test_sizes();
  test_both_directions();
  test_many_in_flight(1000);
  test_many_in_flight(1 << 20);
  test_early_messages();
  test_receive_larger_than_send();
  test_send_larger_than_receive();
  test_too_large();
  test_bad_arguments();
  test_reuse_of_a_listener();
  test_close_after_send();
  test_close_in_flight(true);
  test_close_in_flight(false);
  test_cycles_leak_nothing();
  test_ring();
  test_killed_sender();
  test_killed_idle_sender();
  test_killed_receiver();
  test_stopped_receiver();
  test_stopped_sender();
  test_strangers();
  test_lies();
  test_pieces_out_of_order();
  test_messages_out_of_order();
  test_a_late_piece();
  test_ends();
  test_reset();
  test_end_beside_a_parked_socket();
  test_slow_socket();
  test_threads();
}
