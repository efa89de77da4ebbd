// Tests waiting callers, one of which is the driver (io/engine.h). No caller may miss the end of
// its round, whichever thread receives the result.
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <functional>

#include "server.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLong = 60;  // seconds; far more than the engine's ticks and the tests' limits

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One round of `count` elements on one engine.
struct Round {
  Round(ors::Engine* engine, const std::string& key, size_t count)
      : source(count, 1.0f), target(count) {
    std::optional<ors::Failure> failure;
    operation = submit(engine, key, source, &target, &failure);
    CHECK(!failure);
  }

  std::vector<float> source;
  std::vector<float> target;
  ors::OperationRef operation;
};

constexpr size_t kSmallCount = 1000;
static_assert(kSmallCount * sizeof(float) <= ors::kSmallBytes, "a driver moves it");

void on_both(const Engines& engines, const std::function<void(ors::Engine*)>& work) {
  std::vector<std::thread> threads;
  for (const auto& engine : engines) threads.emplace_back([&engine, &work] { work(engine.get()); });
  for (std::thread& thread : threads) thread.join();
}

// Mixes drivers, waiters beside a driver, polls, and large rounds on the loops' threads.
void test_many_waiters() {
  Server first(0, 2);
  Server second(1, 2);
  const Engines engines = join({first.address(), second.address()});
  on_both(engines, [](ors::Engine* engine) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([engine, t] {
        const double patience = t == 3 ? 0.0002 : kLong;
        const size_t count = t == 2 ? 50000 : kSmallCount + t;
        for (int n = 0; n < (t == 2 ? 30 : 300); ++n) {
          Round round(engine, "key" + std::to_string(t), count);
          bool done = engine->wait(round.operation, patience);
          while (!done && t == 3) done = engine->wait(round.operation, patience);
          CHECK(done && round.operation->done() && !round.operation->failure());
          for (const float value : round.target) CHECK(value == 2.0f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

void test_timeout() {
  Server server(0, 1);
  const Engines engines = join({server.address()});
  Round early(engines[0].get(), "key", kSmallCount);
  CHECK(!engines[0]->wait(early.operation, 0));
  const auto start = Clock::now();
  CHECK(!engines[0]->wait(early.operation, 0.12));
  CHECK(seconds_since(start) >= 0.12 && seconds_since(start) < 2);
  std::thread late([&] {
    Round round(engines[1].get(), "key", kSmallCount);
    CHECK(engines[1]->wait(round.operation, kLong));
  });
  CHECK(engines[0]->wait(early.operation, kLong));
  CHECK(!early.operation->failure() && early.target[0] == 2.0f);
  late.join();
}

// Two threads wait for rounds that never finish, one of them as the driver, until `end` ends the
// run.
void check_end(const std::function<void(std::optional<Server>*, ors::Engine*)>& end) {
  std::optional<Server> server;
  server.emplace(0u, 1u);
  const Engines engines = join({server->address()}, 0.3);
  ors::Engine* engine = engines[0].get();
  Round one(engine, "one", kSmallCount);
  Round other(engine, "other", kSmallCount);
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (const Round* round : {&one, &other}) {
    threads.emplace_back([engine, round] {
      CHECK(engine->wait(round->operation, kLong));
      CHECK(round->operation->failure());
    });
  }
  CHECK(!one.operation->wait(0.06));  // more than a tick: the loop's thread has woken once
  end(&server, engine);
  for (std::thread& thread : threads) thread.join();
  CHECK(seconds_since(start) < 5);
}

void test_ends() {
  // The timer of the loop's thread must notice this while the driver sleeps.
  check_end([](std::optional<Server>* server, ors::Engine*) { server->reset(); });
  check_end([](std::optional<Server>*, ors::Engine* engine) { engine->abort(); });
}

// The driver reads the end of the connection, and the loop's thread reconnects.
void test_reconnect_under_a_driver() {
  Server server(0, 1);
  const Engines engines = join({server.address()});
  Round round(engines[0].get(), "key", kSmallCount);
  std::thread driver([&] { CHECK(engines[0]->wait(round.operation, kLong)); });
  CHECK(!round.operation->wait(0.06));
  server.cut();  // the end and a frame arrive in one event
  CHECK(!round.operation->wait(0.2));
  Round peer(engines[1].get(), "key", kSmallCount);
  CHECK(engines[1]->wait(peer.operation, kLong));
  driver.join();
  CHECK(!round.operation->failure() && round.target[0] == 2.0f);
  CHECK(engines[0]->counters().at("reconnects") >= 1);
}

// leave() must reach the loop's thread while a driver sleeps, and waits for open rounds.
void test_leave() {
  Server server(0, 1);
  const Engines engines = join({server.address()});
  Round round(engines[0].get(), "key", kSmallCount);
  std::thread waiter([&] { CHECK(engines[0]->wait(round.operation, kLong)); });
  CHECK(!round.operation->wait(0.06));
  engines[0]->leave();
  Round peer(engines[1].get(), "key", kSmallCount);
  CHECK(engines[1]->wait(peer.operation, kLong));
  engines[1]->leave();
  waiter.join();
  CHECK(!round.operation->failure());
  for (const auto& engine : engines) CHECK(engine->wait_ended(5));
}

// A large round is sent while a driver sleeps, without a driver of its own.
void test_large_beside_a_driver() {
  Server server(0, 1);
  const Engines engines = join({server.address()});
  Round small(engines[0].get(), "small", kSmallCount);
  std::thread driver([&] { CHECK(engines[0]->wait(small.operation, kLong)); });
  CHECK(!small.operation->wait(0.06));
  const Round here(engines[0].get(), "large", 500000);
  const Round there(engines[1].get(), "large", 500000);
  CHECK(here.operation->wait(5));
  // Each round must wake a thread; with ticks alone the rounds would take 15 s.
  const auto start = Clock::now();
  on_both(engines, [](ors::Engine* engine) {
    for (int n = 0; n < 300; ++n) {
      const Round round(engine, "next", 20000);
      CHECK(round.operation->wait(kLong));
    }
  });
  CHECK(seconds_since(start) < 12);
  CHECK(there.operation->wait(kLong));
  const Round last(engines[1].get(), "small", kSmallCount);
  CHECK(last.operation->wait(kLong));
  driver.join();
}

// With ThreadSanitizer, reading what 8 floods left in the sockets takes a minute.
#ifdef __SANITIZE_THREAD__
constexpr uint32_t kFloods = 2;
constexpr double kOnceFlooded = 30;
#elif defined(__SANITIZE_ADDRESS__)
// A turn of the driver takes up to 14 s if 3 loops and 8 floods share 2 cores.
constexpr uint32_t kFloods = 8;
constexpr double kOnceFlooded = 30;
#else
constexpr uint32_t kFloods = 8;
constexpr double kOnceFlooded = 2;
#endif

// Reducers that never stop sending keep the loop's thread busy. A caller that waits for a small
// round must still time out.
void test_flood() {
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> addresses;
  for (uint32_t slot = 0; slot < kFloods; ++slot) {
    servers.push_back(std::make_unique<Server>(slot, kFloods));
    addresses.push_back(servers.back()->address());
  }
  const Engines engines = join(addresses);
  const Round round(engines[0].get(), "key", kSmallCount);
  for (const auto& server : servers) server->flood(true);
  CHECK(!round.operation->wait(0.2));  // the floods are running
  double longest = 0;
  for (int n = 0; n < 8; ++n) {
    const auto start = Clock::now();
    CHECK(!engines[0]->wait(round.operation, 0.05));
    longest = std::max(longest, seconds_since(start));
  }
  for (const auto& server : servers) server->flood(false);
  CHECK(longest < kOnceFlooded);
  const Round peer(engines[1].get(), "key", kSmallCount);
  CHECK(engines[0]->wait(round.operation, kLong) && !round.operation->failure());
  CHECK(engines[1]->wait(peer.operation, kLong));  // the engine writes to `peer` until then
}

std::atomic<int> signals{0};

// A signal ends the driver's wait, so that its caller can run the program's signal handlers.
void test_signal() {
  struct sigaction action{};
  action.sa_handler = [](int) { ++signals; };
  action.sa_flags = SA_RESTART;
  CHECK(::sigaction(SIGUSR1, &action, nullptr) == 0);
  Server server(0, 1);
  const Engines engines = join({server.address()});
  Round round(engines[0].get(), "key", kSmallCount);
  std::atomic<bool> back{false};
  std::thread waiter([&] {
    CHECK(!engines[0]->wait(round.operation, kLong));
    back = true;
  });
  const auto start = Clock::now();
  while (!back) {  // the driver may not have slept yet
    CHECK(::pthread_kill(waiter.native_handle(), SIGUSR1) == 0);
    CHECK(!round.operation->wait(0.01));
  }
  CHECK(signals > 0 && seconds_since(start) < 5);
  waiter.join();
}

// A thread that has to wait for the mutex of the state counts the wait and its time.
void test_waits_are_counted() {
  ors::Options options;
  options.addresses = {"127.0.0.1:1"};
  ors::Shared shared(std::move(options), {}, {}, nullptr);
  auto held = shared.lock();
  CHECK(shared.lock_waits == 0);
  std::atomic<bool> begun{false};
  std::thread waiter([&shared, &begun] {
    begun = true;
    (void)shared.lock();
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  held.unlock();
  waiter.join();
  CHECK(shared.lock_waits == 1 && shared.lock_seconds > 0);
}

}  // namespace

int main() {
  test_waits_are_counted();
  test_many_waiters();
  test_timeout();
  test_ends();
  test_reconnect_under_a_driver();
  test_leave();
  test_large_beside_a_driver();
  test_flood();
  test_signal();
}
