// Test fixture: whole engines in this process, and reducers with one tiny lane over loopback
// sockets.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "io/engine.h"
#include "tiny_lane.h"

constexpr uint32_t kWorld = 2;

inline int listen_on_loopback(uint16_t* port) {
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

inline void write_all(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

// A reducer with one lane, on its own thread.
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
  void flood(bool on) { flood_ = on; }  // sends bytes to rank 0 without end, at most 10 s
  void cut() { cut_ = true; }           // sends a heartbeat, then drops all connections
  void reads(bool on) { reads_ = on; }
  void beats(bool on) { beats_ = on; }  // whether it sends heartbeats
  // Before the engines connect: their sockets hold at most 700 KB, as with packets of a real NIC.
  // The kernel holds more with BBR than with cubic.
  void keep_buffers_small() {
    const int segment = 4'000;
    const int buffer = 32'000;
    CHECK(::setsockopt(listener_, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment) == 0);
    CHECK(::setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer) == 0);
  }
  // From now on sends rank 0 these bytes alone.
  void send(const std::string& bytes) {
    const std::lock_guard<std::mutex> lock(scripted_mutex_);
    scripted_ = scripted_.value_or("") + bytes;
    sent_ += bytes.size();
  }
  uint64_t sent() {  // bytes to rank 0, including those of send() that wait
    const std::lock_guard<std::mutex> lock(scripted_mutex_);
    return sent_;
  }

 private:
  struct Peer {
    int fd = -1;
    std::string early;  // bytes received before the rank is known
    int64_t rank = -1;
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const Peer& peer : peers_) fds.push_back({peer.fd, POLLIN, 0});
      ::poll(fds.data(), fds.size(), 20);
      if (fds[0].revents) accept();
      for (size_t i = 1; i < fds.size(); ++i) {
        if (fds[i].revents && reads_) read(&peers_[i - 1]);
      }
      for (const Peer& peer : peers_) {
        if (peer.rank >= 0) write_all(peer.fd, next_bytes(static_cast<uint32_t>(peer.rank)));
      }
      byes_ = lane_.byes();
      if (beats_ && std::chrono::steady_clock::now() >= next_beat_) {
        next_beat_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
        lane_.beat();
      }
      if (flood_) flood();
      if (cut_.exchange(false)) {
        for (Peer& peer : peers_) cut(&peer);
      }
    }
  }

  std::string next_bytes(uint32_t rank) {
    const std::lock_guard<std::mutex> lock(scripted_mutex_);
    if (scripted_ && rank == 0) return std::exchange(*scripted_, {});
    std::string bytes = lane_.give(rank);
    if (rank == 0) sent_ += bytes.size();
    return bytes;
  }

  void accept() {
    const int fd = ::accept(listener_, nullptr, nullptr);
    const int on = 1;
    CHECK(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    peers_.push_back({fd, {}, -1});
  }

  void flood() {
    std::string payload;
    const std::vector<ors::Value> list(ors::kMaxControlItems);
    ors::msgpack_encode(ors::Value::of_map({{"late", ors::Value::of_list(list)}}), &payload);
    ors::Header h;
    h.kind = ors::kStats;
    h.length = static_cast<uint32_t>(payload.size());
    h.payload_crc = ors::crc32c(payload.data(), payload.size());
    std::string stats(ors::kHeaderSize, '\0');
    ors::pack_header(h, reinterpret_cast<uint8_t*>(stats.data()));
    stats += payload;
    std::string bytes;
    while (bytes.size() < (1 << 20)) bytes += stats;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (flood_ && std::chrono::steady_clock::now() < end) {
      for (const Peer& peer : peers_) {
        if (peer.rank == 0) write_all(peer.fd, bytes);
      }
    }
    flood_ = false;
  }

  // Sends the last frame and the end in one segment.
  void cut(Peer* peer) {
    if (peer->rank < 0) return;
    const int on = 1;
    CHECK(::setsockopt(peer->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0);
    ors::Header h;
    h.kind = ors::kHeartbeat;
    lane_.send(static_cast<uint32_t>(peer->rank), h, {});
    write_all(peer->fd, lane_.give(static_cast<uint32_t>(peer->rank)));
    disconnect(peer);
  }

  void disconnect(Peer* peer) {
    ::shutdown(peer->fd, SHUT_RDWR);
    if (peer->rank >= 0) lane_.disconnect(static_cast<uint32_t>(peer->rank));
    peer->rank = -1;
  }

  void read(Peer* peer) {
    char bytes[65536];
    const ssize_t n = ::recv(peer->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) disconnect(peer);
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
    const int64_t rank = *hello.find("rank")->as_int();
    for (Peer& old : peers_) {
      if (old.rank == rank) disconnect(&old);
    }
    peer->rank = rank;
    lane_.take(static_cast<uint32_t>(rank), frames);
  }

  TinyLane lane_;
  std::chrono::steady_clock::time_point next_beat_;
  uint16_t port_ = 0;
  int listener_;
  std::vector<Peer> peers_;
  std::mutex scripted_mutex_;
  std::optional<std::string> scripted_;
  uint64_t sent_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> flood_{false};
  std::atomic<bool> reads_{true};
  std::atomic<bool> beats_{true};
  std::atomic<uint32_t> byes_{0};
  std::thread thread_;
};

inline ors::Options options(uint32_t rank, std::vector<std::string> addresses) {
  ors::Options o;
  o.addresses = std::move(addresses);
  o.job = "job";
  o.run_id = rank == 0 ? "run" : "";
  o.rank = rank;
  o.world_size = kWorld;
  o.chunk_table = {{0, 16384}};
  o.connect_timeout = 10;
  o.silence = 60;  // TinyLane has no routes, and a shorter silence of a starved lane makes one
  o.incarnation = std::string(16, static_cast<char>('0' + rank));
  o.loops = loops_of_test();
  return o;
}

inline ors::Submission all_reduce(const std::string& key, const std::vector<float>& source,
                                  std::vector<float>* target) {
  ors::Submission s;
  s.descriptor = {ors::kAllReduce, ors::kSum, ors::kFloat32, false, source.size(), 0};
  s.key = key;
  s.source = reinterpret_cast<const uint8_t*>(source.data());
  s.source_bytes = source.size() * sizeof(float);
  s.target = reinterpret_cast<uint8_t*>(target->data());
  s.target_bytes = s.source_bytes;
  return s;
}

inline ors::OperationRef submit(ors::Engine* engine, const std::string& key,
                                const std::vector<float>& source, std::vector<float>* target,
                                std::optional<ors::Failure>* failure) {
  ors::Submission s = all_reduce(key, source, target);
  s.notify = true;
  ors::OperationRef operation;
  *failure = engine->submit(s, &operation);
  return operation;
}

using Engines = std::vector<std::unique_ptr<ors::Engine>>;

inline Engines join(const std::vector<std::string>& addresses, double reducer_wait = 30) {
  Engines engines;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ors::Options o = options(rank, addresses);
    o.reducer_wait = reducer_wait;
    engines.push_back(std::make_unique<ors::Engine>(o));
    engines.back()->start();
  }
  for (const auto& engine : engines) {
    CHECK(engine->wait_joined(10));
    CHECK(!engine->failure());
  }
  return engines;
}
