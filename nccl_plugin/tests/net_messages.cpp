// Messages over loopback, within one process; the cases of aws-ofi-nccl's functional tests.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "device.h"
#include "net_ends.h"
#include "net_wire.h"

namespace ors::nccl {
namespace {

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
  set_net(3, 1000);
  exchange(Pair(), 1'000'001, 1, true);
  set_net();
}

// Both directions of two connections at the same time.
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

// All requests are in flight and are polled in a mixed order. One more request is not accepted
// until one is done.
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

// The sender is ahead of the receiver by more messages than there are requests.
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
  Bytes small(100, 0x55);
  Bytes second(1000);
  const Bytes large = pattern(64 << 20, 2);
  const Pair pair;
  void* receive = post_receive(pair.receive, &small);
  void* other = post_receive(pair.receive, &second);
  const Bytes source = pattern(101, 1);
  CHECK(finish(post_send(pair.send, source)) == 101);
  CHECK(failure_of(receive) == kInternalError);
  CHECK(failure_of(other) == kInternalError);
  CHECK(small == Bytes(100, 0x55));
  check_dead(nullptr, pair.receive, kInternalError);
  void* request = nullptr;  // the sender fails as well
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
  Result result = kSuccess;  // the listener is closed
  wait_until([&] { return (result = net_connect(0, handle.data(), &comm)) != kSuccess; });
  void* state = &comm;
  CHECK(result == kRemoteError && comm == nullptr);
  CHECK(load_state(handle.data(), &state) && state == nullptr);
}

void test_reuse_of_a_listener() {
  const Listening listening;
  for (uint64_t i = 0; i < 3; ++i) exchange(Pair(listening), 300000, i, true);
  // Connect at the same time, with interleaved sockets.
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
    CHECK(net_close(receiver) == kSuccess);
  }
  for (void* sender : senders) CHECK(net_close(sender) == kSuccess);
}

// Messages sent before the close arrive, also if their receives are posted after the close.
void test_close_after_send() {
  Pair pair;
  for (size_t i = 0; i < 8; ++i) finish(post_send(pair.send, pattern(20000 * i, i)));
  CHECK(net_close(pair.send) == kSuccess);
  pair.send = nullptr;
  for (size_t i = 0; i < 8; ++i) {
    Bytes target(20000 * i);
    CHECK(finish(post_receive(pair.receive, &target)) == target.size());
    CHECK(target == pattern(target.size(), i));
  }
  check_dead(nullptr, pair.receive, kRemoteError);
}

// A close with requests in flight returns at once, and the plugin does not touch the memory again.
void test_close_in_flight(bool sender_first) {
  const Bytes source = pattern(64 << 20, 3);
  Bytes target(source.size(), 0);
  Pair pair;
  void* send = post_send(pair.send, source);
  void* receive = post_receive(pair.receive, &target);
  void* second = post_receive(pair.receive, &target);
  for (int i = 0; i < 20; ++i) {
    CHECK(!is_done(send));
    CHECK(!is_done(receive));
  }
  const auto start = Clock::now();
  if (sender_first) {
    CHECK(net_close(pair.send) == kSuccess);
    pair.send = nullptr;
    CHECK(failure_of(receive) == kRemoteError);
    CHECK(failure_of(second) == kRemoteError);
    check_dead(nullptr, pair.receive, kRemoteError);
  } else {
    CHECK(net_close(pair.receive) == kSuccess);
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
  const Listening listening;  // its attempts are not accepted
  void* sender = connect_now(listening.handle);
  CHECK(net_close(sender) == kSuccess);
  CHECK(count_fds() == before + 1);
}

// Two threads per connection, one for each end.
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

void test_all() {
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
  test_threads();
}

}  // namespace
}  // namespace ors::nccl

int main() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::alarm(300);
  ors::nccl::with_and_without_threads(ors::nccl::test_all);
}
