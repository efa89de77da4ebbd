// Helper threads: how many there are, when they start and end, and that they sleep.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "net_ends.h"
#include "net_plan.h"

namespace ors::nccl {
namespace {

constexpr size_t kSmall = 64 << 10;  // the largest message that stays with the caller
constexpr size_t kLarge = 8 << 20;

// Calls `visit` with the folder of each helper thread. A sanitizer has a thread of its own.
template <class Visit>
void each_helper(const Visit& visit) {
  DIR* folder = ::opendir("/proc/self/task");
  CHECK(folder != nullptr);
  while (const dirent* entry = ::readdir(folder)) {
    const std::string path = std::string("/proc/self/task/") + entry->d_name;
    std::string name;
    std::ifstream(path + "/comm") >> name;
    if (name == "ors-net") visit(path);
  }
  ::closedir(folder);
}

size_t count_helpers() {
  size_t count = 0;
  each_helper([&](const std::string&) { ++count; });
  return count;
}

// A thread has its name a moment after its start, and may be listed a moment after its end.
void check_helpers(size_t count) {
  wait_until([&] { return count_helpers() == count; });
}

// Nanoseconds that the helper threads have run.
uint64_t helpers_ran() {
  uint64_t sum = 0;
  each_helper([&](const std::string& path) {
    uint64_t ran = 0;
    std::ifstream(path + "/schedstat") >> ran;
    sum += ran;
  });
  return sum;
}

void set_threads(int threads, int sockets = kByNic) {
  test_threads = threads;
  set_net(sockets);
}

void check_plan(const std::string& vendor, int threads, int sockets, size_t expected_threads,
                size_t expected_sockets) {
  const NetPlan plan = plan_connection(vendor, {sockets, 1, threads});
  CHECK(plan.threads == expected_threads && plan.sockets == expected_sockets);
}

void test_plans() {
  check_plan("", kByNic, kByNic, 0, 4);
  check_plan("0x8086", kByNic, kByNic, 0, 4);
  check_plan("0x1d0f", kByNic, kByNic, 2, 17);
  check_plan("0x1ae0", kByNic, kByNic, 4, 5);
  check_plan("0x1d0f", 0, kByNic, 0, 16);
  check_plan("0x1d0f", kByNic, 1, 1, 2);
  check_plan("", 8, kByNic, 8, 9);
  check_plan("", 8, 2, 2, 3);
  check_plan("", 16, 64, 16, kMaxNetSockets);
}

// A sender starts its threads with the first large message, a receiver with its first request.
void test_threads_start_with_the_first_need() {
  set_threads(3);
  check_helpers(0);
  {
    const Pair pair;
    check_helpers(0);
    exchange(pair, kSmall, 1, true);
    check_helpers(3);
    exchange(pair, kSmall + 1, 2, true);
    check_helpers(6);
    exchange(pair, kLarge, 3, false);
    check_helpers(6);
  }
  check_helpers(0);
}

// Each end has its own number of threads; a sender without threads uses all sockets.
void test_ends_that_differ() {
  for (const std::array<int, 2> threads : {std::array{0, 3}, std::array{3, 0}, std::array{1, 4}}) {
    set_threads(threads[1]);
    const Listening listening;
    set_threads(threads[0]);
    const Pair pair(listening);
    for (const size_t size : {size_t{0}, size_t{1}, kSmall, kSmall + 1, kLarge}) {
      exchange(pair, size, size, size % 2 == 0);
    }
  }
}

// Large and small messages in turn, many in flight: each is complete, and in its own memory.
void test_large_between_small() {
  set_threads(3);
  const Pair pair;
  constexpr size_t kRounds = 20;
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<Bytes> sources;
    std::vector<Bytes> targets;
    for (size_t i = 0; i < kNetRequests; ++i) {
      const size_t size = i % 3 == 0 ? 300'000 + i : i % 3 == 1 ? 100 * i : kSmall + 1;
      sources.push_back(pattern(size, round + i));
      targets.emplace_back(size);
    }
    std::vector<void*> open;
    for (size_t i = 0; i < kNetRequests; ++i) {
      open.push_back(post_send(pair.send, sources[i]));
      open.push_back(post_receive(pair.receive, &targets[i]));
    }
    wait_until([&] {
      for (void*& request : open) {
        if (request != nullptr && is_done(request)) request = nullptr;
      }
      return std::count(open.begin(), open.end(), nullptr) == static_cast<ptrdiff_t>(open.size());
    });
    CHECK(sources == targets);
  }
}

// Threads that wait for a message, for a request, or for room in a socket use no processor.
void test_threads_sleep() {
  set_threads(4);
  const Bytes source = pattern(kLarge, 1);  // the memory outlives the connections
  Bytes target(kLarge);
  const Pair waits;
  const Pair parked;
  const Pair full;
  exchange(waits, kLarge, 1, true);
  exchange(parked, kLarge, 1, true);
  exchange(full, kLarge, 1, true);
  void* receive = post_receive(waits.receive, &target);
  CHECK(post_send(parked.send, source) != nullptr);
  std::vector<void*> sends;
  for (size_t i = 0; i < kNetRequests; ++i) sends.push_back(post_send(full.send, source));
  // First they fill the kernel's buffers.
  uint64_t ran = helpers_ran();
  CHECK(ran > 0);
  auto since = Clock::now();
  wait_until([&] {
    CHECK(!is_done(sends.back()));
    CHECK(!is_done(receive));
    const uint64_t now = helpers_ran();
    if (now != ran) since = Clock::now();
    ran = now;
    return seconds_since(since) > 0.3;
  });
}

// After a close the memory of requests in flight belongs to the caller again.
void test_close_while_threads_write() {
  set_threads(3);
  for (int cycle = 0; cycle < 20; ++cycle) {
    const Bytes source = pattern(kLarge, 1);
    Bytes target(kLarge);
    Pair pair;
    void* receive = post_receive(pair.receive, &target);
    CHECK(post_send(pair.send, source) != nullptr && receive != nullptr);
    wait_until([&] {
      (void)is_done(receive);
      return cycle % 2 == 0 || count_helpers() > 3;
    });
    void** closing = cycle % 4 < 2 ? &pair.receive : &pair.send;
    const auto start = Clock::now();
    CHECK(net_close(std::exchange(*closing, nullptr)) == kSuccess);
    CHECK(seconds_since(start) < 5);
    if (pair.receive != nullptr) continue;
    std::fill(target.begin(), target.end(), uint8_t{0x77});
    CHECK(std::count(target.begin(), target.end(), 0x77) == static_cast<ptrdiff_t>(kLarge));
  }
  check_helpers(0);
}

// A forked child can close what it inherited, and use nothing of it. The parent goes on.
void test_fork() {
  set_threads(2);
  const Pair pair;
  exchange(pair, kLarge, 1, true);
  const Bytes source = pattern(kLarge, 2);
  Bytes target(kLarge);
  void* send = post_send(pair.send, source);
  void* receive = post_receive(pair.receive, &target);
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
      ::alarm(30);
      void* request = nullptr;
      int done = 0;
      CHECK(net_isend(pair.send, source.data(), 8, &request) == kInvalidUsage);
      CHECK(net_irecv(pair.receive, target.data(), 8, &request) == kInvalidUsage);
      CHECK(net_test(send, &done, nullptr) == kInvalidUsage && done == 0);
      CHECK(net_close(pair.send) == kSuccess && net_close(pair.receive) == kSuccess);
      ::_exit(0);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(finish(receive) == kLarge && target == source);
  CHECK(finish(send) == kLarge);
}

// Threads that cannot start are a failure of the connection, not a request that never ends.
[[maybe_unused]] void test_no_descriptor_is_left() {
  set_threads(2);
  const Bytes source = pattern(kLarge, 1);
  const Pair pair;
  rlimit usual{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  void* request = nullptr;
  CHECK(net_isend(pair.send, source.data(), kLarge, &request) == kSystemError);
  CHECK(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(request == nullptr);
  check_dead(pair.send, nullptr, kSystemError);
}

// The caller takes no part in a large message: its calls only look whether the message is done.
void test_calls_are_short() {
  set_threads(2);
  const Pair pair;
  const Bytes source = pattern(kLarge, 1);
  Bytes target(kLarge);
  void* send = post_send(pair.send, source);
  void* receive = post_receive(pair.receive, &target);
  wait_until([&] { return is_done(receive); });  // the sender is never polled
  CHECK(source == target);
  CHECK(finish(send) == kLarge);
}

void test_all() {
  test_plans();
  test_threads_start_with_the_first_need();
  test_ends_that_differ();
  test_large_between_small();
  test_threads_sleep();
  test_close_while_threads_write();
  test_calls_are_short();
#ifndef __SANITIZE_ADDRESS__  // UBSan, in the same build, needs descriptors to check an exception
  test_no_descriptor_is_left();
#endif
  test_fork();
  check_helpers(0);
}

}  // namespace
}  // namespace ors::nccl

int main() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::alarm(300);
  ors::nccl::test_all();
}
