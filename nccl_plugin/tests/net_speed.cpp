// One end of a connection at full speed; bench/nccl_net.py runs both ends and prints the table.
//   net_speed receive THREADS SOCKETS SIZE COUNT           prints the listener's handle first
//   net_speed send THREADS SOCKETS SIZE COUNT HANDLE
// Prints the seconds of COUNT messages after a tenth of them as warm-up, and the share of these
// seconds inside calls of more than 5 microseconds: NCCL's thread cannot serve other connections
// then. As NCCL's thread does, it keeps 8 messages in flight, and yields when nothing is done.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "net_ends.h"

namespace ors::nccl {
namespace {

constexpr size_t kInFlight = 8;  // NCCL_STEPS
constexpr double kLongCall = 5e-6;

HandleBytes from_hex(const std::string& text) {
  HandleBytes handle{};
  CHECK(text.size() == 2 * handle.size());
  for (size_t i = 0; i < handle.size(); ++i) {
    handle[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

class End {
 public:
  End(void* comm, bool sends, size_t size)
      : comm_(comm), sends_(sends), buffers_(kInFlight, pattern(size, 1)) {}

  void move(size_t count) {
    std::vector<void*> open(kInFlight, nullptr);
    size_t posted = 0;
    size_t finished = 0;
    while (finished < count) {
      bool idle = true;
      for (size_t i = 0; i < kInFlight; ++i) {
        if (open[i] == nullptr && posted < count) {
          timed([&] { open[i] = post(&buffers_[i]); });
          if (open[i] != nullptr) ++posted;
        }
        if (open[i] == nullptr) continue;
        bool done = false;
        timed([&] { done = is_done(open[i]); });
        if (!done) continue;
        open[i] = nullptr;
        ++finished;
        idle = false;
      }
      if (idle) ::sched_yield();
    }
  }

  double take_long() { return std::exchange(long_, 0.0); }

 private:
  // Null: the next place is still used by an earlier message; again later.
  void* post(Bytes* buffer) {
    return sends_ ? post_send(comm_, *buffer) : post_receive(comm_, buffer);
  }

  template <class Call>
  void timed(const Call& call) {
    const auto start = Clock::now();
    call();
    const double took = seconds_since(start);
    if (took > kLongCall) long_ += took;
  }

  void* const comm_;
  const bool sends_;
  std::vector<Bytes> buffers_;
  double long_ = 0;
};

void run(const std::vector<std::string>& words) {
  const bool sends = words[0] == "send";
  net_settings().threads = std::stoi(words[1]);
  net_settings().sockets = std::stoi(words[2]);
  const size_t size = std::stoul(words[3]);
  const size_t count = std::stoul(words[4]);
  void* comm = nullptr;
  if (sends) {
    comm = connect_now(from_hex(words[5]));
  } else {
    const Listening listening;
    for (const uint8_t byte : listening.handle) std::printf("%02x", byte);
    std::printf("\n");
    std::fflush(stdout);
    comm = accept_now(listening.comm);
  }
  End end(comm, sends, size);
  end.move(std::max<size_t>(count / 10, 1));
  (void)end.take_long();
  const auto start = Clock::now();
  end.move(count);
  const double seconds = seconds_since(start);
  std::printf("%.6f %.4f\n", seconds, end.take_long() / seconds);
  CHECK(net_close(comm) == kSuccess);
}

}  // namespace
}  // namespace ors::nccl

int main(int count, char** words) {
  ::alarm(300);
  const std::vector<std::string> given(words + 1, words + count);
  if (given.size() < 5) {
    std::fprintf(stderr, "see the first lines of net_speed.cpp\n");
    return 2;
  }
  ors::nccl::run(given);
}
