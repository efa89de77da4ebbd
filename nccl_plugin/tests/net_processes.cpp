// The transport between processes that die or are stopped.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "net_ends.h"

namespace ors::nccl {
namespace {

using Body = std::function<void()>;

// A child process that exits with 0 if its body returns. It ends with its parent at the latest,
// even if it is stopped.
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child > 0) return child;
  CHECK(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
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

// Memory shared with child processes.
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
  CHECK(net_close(send) == kSuccess && net_close(receive) == kSuccess);
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
  for (void* request : requests) {  // some messages may be complete
    int done = 0;
    Result result = kSuccess;
    wait_until([&] { return (result = net_test(request, &done, nullptr)) != kSuccess || done; });
    CHECK(done || result == kRemoteError);
    failed += !done;
  }
  CHECK(failed > 0 && seconds_since(dead) < 2);
  check_dead(nullptr, receive, kRemoteError);
  CHECK(net_close(receive) == kSuccess);
}

// The child dies while it sends nothing: only the end of its sockets shows the death.
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
  CHECK(net_close(receive) == kSuccess);
}

// A child that accepts one connection and receives `messages` messages of 10 bytes, then nothing.
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
    CHECK(net_close(send) == kSuccess);
  }
}

// Measures the duration of calls, to test that no call blocks.
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
    CHECK(longest_ < 0.5);  // generous, since the machine is shared; a blocked call would not end
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
  CHECK(net_close(send) == kSuccess);
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
  CHECK(net_close(receive) == kSuccess);
  kill_now(child);
}

void test_all() {
  test_ring();
  test_killed_sender();
  test_killed_idle_sender();
  test_killed_receiver();
  test_stopped_receiver();
  test_stopped_sender();
}

}  // namespace
}  // namespace ors::nccl

int main() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::alarm(300);
  ors::nccl::with_and_without_threads(ors::nccl::test_all);
}
