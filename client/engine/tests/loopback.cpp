// Tests whole engines with tiny lanes over loopback sockets: many submitting threads, close during
// rounds, unreachable reducers, peers that are not reducers, forked children.
#include <sys/wait.h>

#include "io/fork.h"
#include "server.h"

namespace {

void check_sums(ors::Engine* engine, const std::string& key, int rounds, size_t count) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> source(count, static_cast<float>(round + 1));
    std::vector<float> target(count);
    std::optional<ors::Failure> failure;
    const auto operation = submit(engine, key, source, &target, &failure);
    CHECK(!failure);
    source.assign(count, -1);  // allowed: the engine has copied it
    CHECK(engine->wait(operation, 30));
    CHECK(!operation->failure());
    for (const float value : target) CHECK(value == 2.0f * static_cast<float>(round + 1));
  }
}

void test_many_threads() {
  Server first(0, 2);
  Server second(1, 2);
  Engines engines = join({first.address(), second.address()});
  std::vector<std::thread> threads;
  std::atomic<int> notified{0};
  for (const auto& engine : engines) {
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&engine, t] {
        check_sums(engine.get(), "key" + std::to_string(t), 15,
                   3u + 30000u * static_cast<size_t>(t));
      });
    }
    threads.emplace_back([&engine, &notified] {
      for (int n = 0; n < 45; ++n) {
        CHECK(engine->next_event(30).has_value());
        ++notified;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(notified == 90);
  std::vector<std::thread> closers;
  for (const auto& engine : engines) {
    closers.emplace_back([&engine] {
      engine->leave();
      CHECK(engine->wait_ended(10));
      engine->abort();
    });
  }
  for (std::thread& thread : closers) thread.join();
  CHECK(first.byes() == kWorld && second.byes() == kWorld);
}

// The caller of an all-reduce in place on an array that "a device" fills and empties: this thread.
void check_words(ors::Engine* engine, int rounds, size_t count) {
  constexpr size_t kSlice = 20000;
  std::vector<float> array(count);
  std::atomic<uint32_t> slices{0};
  std::atomic<uint32_t> gate{0};
  for (int round = 0; round < rounds; ++round) {
    slices = gate = 0;
    ors::Submission s = all_reduce("words", array, &array);
    s.words = {&slices, kSlice, &gate};
    ors::OperationRef operation;
    CHECK(!engine->check(s));
    CHECK(!engine->submit(s, &operation));
    for (size_t at = 0; at < count; ++at) {
      array[at] = static_cast<float>(round + 1);
      if (at + 1 == count || (at + 1) % kSlice == 0)
        slices = static_cast<uint32_t>(at / kSlice + 1);
    }
    while (gate == 0) std::this_thread::yield();
    CHECK(gate == ors::DeviceWords::kDone);
    for (const float value : array) CHECK(value == 2.0f * static_cast<float>(round + 1));
  }
}

void test_device_words() {
  Server first(0, 2);
  Server second(1, 2);
  Engines engines = join({first.address(), second.address()});
  std::vector<std::thread> threads;
  for (const auto& engine : engines) {
    threads.emplace_back([&engine] { check_words(engine.get(), 20, 70001); });
  }
  for (std::thread& thread : threads) thread.join();
  // A device that stands still does not keep an engine from ending.
  std::vector<float> array(70001);
  std::atomic<uint32_t> slices{0};
  std::atomic<uint32_t> gate{0};
  ors::Submission s = all_reduce("words", array, &array);
  s.words = {&slices, 70001, &gate};
  ors::OperationRef operation;
  CHECK(!engines[0]->submit(s, &operation));
  engines[0]->abort();
  CHECK(operation->done() && gate == ors::DeviceWords::kFailed);
}

void test_lost_connections() {
  Server server(0, 1);
  Engines engines = join({server.address()});
  const std::vector<float> source(100000, 1);
  std::vector<std::vector<float>> targets(kWorld, source);
  std::optional<ors::Failure> failure;
  const auto first = submit(engines[0].get(), "key", source, &targets[0], &failure);
  CHECK(!failure && !first->wait(0.05));
  server.cut();
  CHECK(!first->wait(0.05));
  // A tiny lane does not keep results for a disconnected rank.
  const auto back = [&] { return engines[0]->counters().at("reconnects") == 1; };
  for (int i = 0; i < 1000 && !back(); ++i) first->wait(0.01);
  const auto second = submit(engines[1].get(), "key", source, &targets[1], &failure);
  CHECK(!failure && first->wait(10) && second->wait(10));
  CHECK(!first->failure() && !second->failure());
  for (const auto& target : targets) {
    for (const float value : target) CHECK(value == 2);
  }
  CHECK(back());
}

void test_lost_reducer() {
  std::optional<Server> server;
  server.emplace(0u, 1u);
  const std::string address = server->address();
  Engines engines = join({address}, 0.3);
  std::vector<float> target(100000);
  std::optional<ors::Failure> failure;
  const auto open = submit(engines[0].get(), "key", target, &target, &failure);
  CHECK(!failure && !open->wait(0.05));
  server.reset();
  CHECK(open->wait(10));
  CHECK(open->failure()->code == ors::ErrorCode::kUnavailable);
  CHECK(open->failure()->message.find(address) != std::string::npos);
  submit(engines[0].get(), "key", target, &target, &failure);
  CHECK(failure && failure->code == ors::ErrorCode::kUnavailable);
  CHECK(engines[0]->next_event(5)->operation == open);
  CHECK(!engines[0]->next_event(5));  // returns at once when the engine has ended
}

std::string frame(ors::Header h, const std::string& payload) {
  h.length = static_cast<uint32_t>(payload.size());
  h.payload_crc = ors::crc32c(payload.data(), payload.size());
  std::string bytes(ors::kHeaderSize, '\0');
  ors::pack_header(h, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes + payload;
}

// One reducer refuses a round while the result of another is arriving: from then on the target
// belongs to the caller.
void test_target_is_let_go() {
  constexpr size_t kChunkBytes = 16384;
  Server first(0, 2);
  Server second(1, 2);
  Engines engines = join({first.address(), second.address()});
  ors::Engine* engine = engines[0].get();
  const auto receive = [&](Server* from, const std::string& bytes) {
    from->send(bytes);
    while (engine->bytes_received() < first.sent() + second.sent()) std::this_thread::yield();
  };
  const std::vector<float> source(2 * kChunkBytes / sizeof(float), 1);
  std::vector<float> target(source.size(), -1);
  std::optional<ors::Failure> failure;
  const auto operation = submit(engine, "key", source, &target, &failure);
  CHECK(!failure);
  const uint32_t slot = ors::key_id("key") % 2;  // of chunk 0
  ors::Header h;
  h.kind = ors::kResult;
  h.key = ors::key_id("key");
  h.count = source.size();
  h.dtype = h.op = h.collective = 1;
  const std::string result = frame(h, std::string(kChunkBytes, '\x42'));
  while (engine->counters().at("unanswered") < 2 * kChunkBytes) std::this_thread::yield();
  first.send("");
  second.send("");
  receive(slot == 0 ? &first : &second, result.substr(0, 1000));
  h = {};
  h.kind = ors::kRefused;
  h.key = ors::key_id("key");
  h.chunk = 1 - slot;
  const std::string verdict = ors::encode_error({ors::ErrorCode::kMismatch, "no"});
  receive(slot == 0 ? &second : &first, frame(h, verdict));
  CHECK(operation->wait(10) && operation->failure()->code == ors::ErrorCode::kMismatch);
  CHECK(target[0] != -1 && target.back() == -1);
  target.assign(target.size(), -7);
  receive(slot == 0 ? &first : &second, result.substr(1000));
  for (const float value : target) CHECK(value == -7);
  CHECK(!engine->failure());
}

void test_abort_in_the_middle() {
  Server server(0, 1);
  Engines engines = join({server.address()});
  std::vector<std::thread> threads;
  for (const auto& engine : engines) {
    threads.emplace_back([&engine] {
      std::vector<float> target(50000);
      for (std::optional<ors::Failure> failure; !failure;) {
        if (auto operation = submit(engine.get(), "key", target, &target, &failure)) {
          CHECK(operation->wait(10));
        }
      }
    });
  }
  threads.emplace_back([&engines] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const auto& engine : engines) engine->abort();
  });
  for (std::thread& thread : threads) thread.join();
}

ors::Failure failure_to_join(const std::string& address) {
  ors::Options o = options(0, {address});
  o.connect_timeout = 0.5;
  ors::Engine engine(o);
  engine.start();
  CHECK(engine.wait_joined(10));
  return *engine.failure();
}

// A lane whose socket was full is sent all its bytes once it reads again, although nothing comes
// from it: the kernel reports room in the buffer only once.
void test_full_socket() {
  Server server(0, 1);
  server.keep_buffers_small();
  const Engines engines = join({server.address()});
  ors::Engine* engine = engines[0].get();
  server.beats(false);
  server.reads(false);
  const std::vector<float> source(120'000, 1.0f);  // of one round 512 KiB at most are in flight
  std::vector<std::vector<float>> targets(2, std::vector<float>(source.size()));
  std::optional<ors::Failure> failure;
  for (size_t n = 0; n < targets.size(); ++n) {
    CHECK(submit(engine, "key" + std::to_string(n), source, &targets[n], &failure) != nullptr);
    CHECK(!failure);
  }
  uint64_t stuck = 0;
  for (uint64_t sent = 1; sent != stuck; sent = engine->bytes_sent()) {
    stuck = sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  const uint64_t all = targets.size() * source.size() * sizeof(float);
  CHECK(stuck < all);
  server.reads(true);
  const auto start = std::chrono::steady_clock::now();
  while (engine->bytes_sent() < all) {
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void test_nobody_there() {
  uint16_t port = 0;
  const int fd = listen_on_loopback(&port);
  const std::string address = "127.0.0.1:" + std::to_string(port);
  ors::Failure failure = failure_to_join(address);  // accepts connections but never answers
  CHECK(failure.code == ors::ErrorCode::kUnavailable);
  CHECK(failure.message.find(address) != std::string::npos);
  ::close(fd);
  failure = failure_to_join(address);
  CHECK(failure.message.find("is `reducer serve` running there?") != std::string::npos);
  CHECK(failure_to_join("no-such-host.invalid:1").code == ors::ErrorCode::kUnavailable);
}

void test_absent_rank() {
  Server server(0, 1);
  const ors::Failure failure = failure_to_join(server.address());
  CHECK(failure.code == ors::ErrorCode::kJoin);
  CHECK(failure.message.find("not joined job 'job'") != std::string::npos);
}

void test_other_servers() {
  ors::Preface preface;
  preface.major = 9;
  const std::string version = ors::pack_preface(preface);
  for (const std::string& answer : {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), version}) {
    uint16_t port = 0;
    const int fd = listen_on_loopback(&port);
    std::thread peer([&] {
      const int connection = ::accept(fd, nullptr, nullptr);
      write_all(connection, answer);
      char bytes[4096];
      while (::recv(connection, bytes, sizeof bytes, 0) > 0) {
      }
      ::close(connection);
    });
    const ors::Failure failure = failure_to_join("127.0.0.1:" + std::to_string(port));
    if (answer == version) {
      CHECK(failure.code == ors::ErrorCode::kVersion);
      const std::string minor = std::to_string(ors::kProtocolMinor);
      CHECK(failure.message.find("9." + minor) != std::string::npos);
      CHECK(failure.message.find("1." + minor) != std::string::npos);
    } else {
      CHECK(failure.code == ors::ErrorCode::kProtocol);
      CHECK(failure.message.find("answers HTTP") != std::string::npos);
    }
    peer.join();
    ::close(fd);
  }
}

// The child's copies of the sockets are closed, and the parent continues to work.
void test_fork() {
  Server server(0, 1);
  Engines engines = join({server.address()});
  const int generation = ors::fork_generation();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ors::fork_generation() == generation ? 1 : 0);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::vector<std::thread> threads;
  for (const auto& engine : engines) {
    threads.emplace_back([&engine] { check_sums(engine.get(), "key", 3, 1000); });
  }
  for (std::thread& thread : threads) thread.join();
}

// An engine object holds no key once its thread has ended.
void test_the_key_is_zeroed() {
  const ors::Secret key = ors::job_key("0123456789abcdef", "job");
  const auto engine =
      std::make_unique<ors::Engine>(options(0, {"127.0.0.1:1"}), ors::Trust{key, nullptr});
  const auto holds_key = [&] {
    const auto* image = reinterpret_cast<const char*>(engine.get());
    return std::string_view(image, sizeof(ors::Engine)).find(key.bytes()) != std::string_view::npos;
  };
  CHECK(holds_key());
  engine->start();
  CHECK(!engine->wait_joined(0.1));
  engine->abort();
  CHECK(!holds_key());
}

}  // namespace

int main() {
  test_many_threads();
  test_device_words();
  test_lost_connections();
  test_lost_reducer();
  test_target_is_let_go();
  test_abort_in_the_middle();
  test_full_socket();
  test_nobody_there();
  test_absent_rank();
  test_other_servers();
  test_fork();
  test_the_key_is_zeroed();
}
