// Whole engines over loopback sockets against tiny lanes: many submitting threads, closing in the
// middle, unreachable reducers, peers that are none, forked children.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "check.h"
#include "fork.h"
#include "loop.h"
#include "tiny_lane.h"

namespace {

constexpr uint32_t kWorld = 2;

int listen_on_loopback(uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(::listen(fd, 16) == 0);
  CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

void write_all(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

// One reducer with one lane on a thread of its own.
class Server {
 public:
  Server(uint32_t slot, uint32_t reducers)
      : lane_(kWorld, 0, 1, slot, reducers, 1 << 20), listener_(listen_on_loopback(&port_)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
    for (const Peer& peer : peers_) ::close(peer.fd);
    ::close(listener_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  uint32_t byes() const { return byes_; }
  void cut() { cut_ = true; }  // drop all connections without a word

 private:
  struct Peer {
    int fd = -1;
    std::string early;  // until the rank is known
    int64_t rank = -1;
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const Peer& peer : peers_) fds.push_back({peer.fd, POLLIN, 0});
      ::poll(fds.data(), fds.size(), 20);
      if (fds[0].revents) peers_.push_back({::accept(listener_, nullptr, nullptr), {}, -1});
      for (size_t i = 1; i < fds.size(); ++i) {
        if (fds[i].revents) read(&peers_[i - 1]);
      }
      for (const Peer& peer : peers_) {
        if (peer.rank >= 0) write_all(peer.fd, lane_.give(static_cast<uint32_t>(peer.rank)));
      }
      byes_ = lane_.byes();
      if (cut_.exchange(false)) {
        for (const Peer& peer : peers_) ::shutdown(peer.fd, SHUT_RDWR);
      }
    }
  }

  void read(Peer* peer) {
    char bytes[65536];
    const ssize_t n = ::recv(peer->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0) ::shutdown(peer->fd, SHUT_RDWR);
    if (n <= 0) return;
    if (peer->rank >= 0)
      return lane_.take(static_cast<uint32_t>(peer->rank), {bytes, static_cast<size_t>(n)});
    peer->early.append(bytes, static_cast<size_t>(n));
    if (peer->early.size() < ors::kPrefaceSize + ors::kHeaderSize) return;
    ors::Header h;
    ors::ErrorCode code;
    const std::string frames = peer->early.substr(ors::kPrefaceSize);
    CHECK(ors::unpack_header(reinterpret_cast<const uint8_t*>(frames.data()), &h, &code) ==
          nullptr);
    if (frames.size() < ors::kHeaderSize + h.length) return;
    ors::Value hello;
    CHECK(ors::msgpack_decode({frames.data() + ors::kHeaderSize, h.length}, &hello) == nullptr);
    peer->rank = *hello.find("rank")->as_int();
    lane_.take(static_cast<uint32_t>(peer->rank), frames);
  }

  TinyLane lane_;
  uint16_t port_ = 0;
  int listener_;
  std::vector<Peer> peers_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cut_{false};
  std::atomic<uint32_t> byes_{0};
  std::thread thread_;
};

ors::Options options(uint32_t rank, std::vector<std::string> addresses) {
  ors::Options o;
  o.addresses = std::move(addresses);
  o.job = "job";
  o.run_id = rank == 0 ? "run" : "";
  o.rank = rank;
  o.world_size = kWorld;
  o.chunk_table = {{0, 16384}};
  o.connect_timeout = 10;
  o.incarnation = std::string(16, static_cast<char>('0' + rank));
  return o;
}

ors::OperationRef submit(ors::Engine* engine, const std::string& key,
                         const std::vector<float>& source, std::vector<float>* target,
                         std::optional<ors::Failure>* failure) {
  ors::Submission s;
  s.descriptor = {ors::kAllReduce, ors::kSum, ors::kFloat32, false, source.size(), 0};
  s.key = key;
  s.source = reinterpret_cast<const uint8_t*>(source.data());
  s.source_bytes = source.size() * sizeof(float);
  s.target = reinterpret_cast<uint8_t*>(target->data());
  s.target_bytes = s.source_bytes;
  s.notify = true;
  ors::OperationRef operation;
  *failure = engine->submit(s, &operation);
  return operation;
}

void check_sums(ors::Engine* engine, const std::string& key, int rounds, size_t count) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> source(count, static_cast<float>(round + 1));
    std::vector<float> target(count);
    std::optional<ors::Failure> failure;
    const auto operation = submit(engine, key, source, &target, &failure);
    CHECK(!failure);
    source.assign(count, -1);  // it was copied
    CHECK(operation->wait(30));
    CHECK(!operation->failure());
    for (const float value : target) CHECK(value == 2.0f * static_cast<float>(round + 1));
  }
}

using Engines = std::vector<std::unique_ptr<ors::Engine>>;

Engines join(const std::vector<std::string>& addresses) {
  Engines engines;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    engines.push_back(std::make_unique<ors::Engine>(options(rank, addresses)));
    engines.back()->start();
  }
  for (const auto& engine : engines) {
    CHECK(engine->wait_joined(10));
    CHECK(!engine->failure());
  }
  return engines;
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
        CHECK(engine->next_finished(30) != nullptr);
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

void test_lost_reducer() {
  Server server(0, 1);
  Engines engines = join({server.address()});
  std::vector<float> target(100000);
  std::optional<ors::Failure> failure;
  const auto open = submit(engines[0].get(), "key", target, &target, &failure);
  CHECK(!failure && !open->wait(0.05));
  server.cut();
  CHECK(open->wait(10));
  CHECK(open->failure()->code == ors::ErrorCode::kUnavailable);
  CHECK(open->failure()->message.find(server.address()) != std::string::npos);
  submit(engines[0].get(), "key", target, &target, &failure);
  CHECK(failure && failure->code == ors::ErrorCode::kUnavailable);
  CHECK(engines[0]->next_finished(5) == open);
  CHECK(engines[0]->next_finished(5) == nullptr);  // the end, at once
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

void test_nobody_there() {
  uint16_t port = 0;
  const int fd = listen_on_loopback(&port);
  const std::string address = "127.0.0.1:" + std::to_string(port);
  ors::Failure failure = failure_to_join(address);  // accepts, and says nothing
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
  std::string version(ors::kPrefaceSize, '\0');
  ors::Preface preface;
  preface.major = 9;
  ors::pack_preface(preface, reinterpret_cast<uint8_t*>(version.data()));
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
      CHECK(failure.message.find("1.0") != std::string::npos);
      CHECK(failure.message.find("9.0") != std::string::npos);
    } else {
      CHECK(failure.code == ors::ErrorCode::kProtocol);
      CHECK(failure.message.find("HTTP/1.1") != std::string::npos);
    }
    peer.join();
    ::close(fd);
  }
}

// The child's copies of the sockets are closed, and the parent goes on.
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

}  // namespace

int main() {
  test_many_threads();
  test_lost_reducer();
  test_abort_in_the_middle();
  test_nobody_there();
  test_absent_rank();
  test_other_servers();
  test_fork();
}
