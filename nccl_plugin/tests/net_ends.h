// Both ends of a connection of the point-to-point transport. Most tests hold both ends and poll
// them in turn.
#pragma once

#include <dirent.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "check.h"
#include "net.h"

namespace ors::nccl {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

constexpr double kPatience = 30;  // seconds; generous, since the machine is shared

// Helper threads of each end. main() runs the tests without and with threads.
inline int test_threads = 0;

inline void set_net(int sockets = kByNic, size_t piece = NetSettings().piece) {
  net_settings() = {sockets, piece, test_threads};
}

inline void with_and_without_threads(const std::function<void()>& tests) {
  for (const int threads : {0, 2}) {
    test_threads = threads;
    set_net();
    tests();
  }
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void wait_until(const std::function<bool()>& reached, double seconds = kPatience) {
  const auto start = Clock::now();
  while (!reached()) CHECK(seconds_since(start) < seconds);
}

inline Bytes pattern(size_t size, uint64_t seed) {
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

inline size_t count_fds() {
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

inline void* connect_now(HandleBytes handle) {
  void* comm = nullptr;
  wait_until([&] {
    CHECK(net_connect(0, handle.data(), &comm) == kSuccess);
    return comm != nullptr;
  });
  return comm;
}

inline void* accept_now(void* listener) {
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
    if (send != nullptr) CHECK(net_close(send) == kSuccess);
    if (receive != nullptr) CHECK(net_close(receive) == kSuccess);
  }
  Pair(const Pair&) = delete;
  void* send = nullptr;
  void* receive = nullptr;
};

inline void* post_send(void* comm, const Bytes& data) {
  void* request = nullptr;
  CHECK(net_isend(comm, data.data(), data.size(), &request) == kSuccess);
  return request;
}

inline void* post_receive(void* comm, Bytes* data) {
  void* request = nullptr;
  CHECK(net_irecv(comm, data->data(), data->size(), &request) == kSuccess);
  return request;
}

inline bool is_done(void* request, size_t* size = nullptr) {
  int done = -1;
  CHECK(net_test(request, &done, size) == kSuccess);
  CHECK(done == 0 || done == 1);
  return done == 1;
}

// Polls until a request is done, and returns the reported size.
inline size_t finish(void* request) {
  size_t size = ~size_t{0};
  wait_until([&] { return is_done(request, &size); });
  return size;
}

// Polls until a request fails, and returns the result.
inline Result failure_of(void* request, double seconds = kPatience) {
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

inline void check_dead(void* send, void* receive, Result how) {
  Bytes data(8);
  void* request = nullptr;
  if (send != nullptr) CHECK(net_isend(send, data.data(), 8, &request) == how);
  if (receive != nullptr) CHECK(net_irecv(receive, data.data(), 8, &request) == how);
  CHECK(request == nullptr);
}

// Sends and receives one message; either side may be posted first.
inline void exchange(const Pair& pair, size_t size, uint64_t seed, bool send_first) {
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

}  // namespace ors::nccl
