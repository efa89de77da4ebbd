// Runs ranks as threads of one process through the plugin's tables and over real reducers, so that
// sanitizers see all of the plugin. Usage: nccl_collnet ranks rounds, with REDUCER_ADDRS set.
#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "abi.h"
#include "check.h"

namespace nccl = ors::nccl;
using Table = nccl::CollNetV11<nccl::PropertiesV12, nccl::VDevice8>;
extern "C" const Table ncclCollNetPlugin_v12;

namespace {

const Table& table = ncclCollNetPlugin_v12;
constexpr size_t kInFlight = 64;

void log(nccl::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level > nccl::kLogWarn) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

using Handle = std::vector<uint8_t>;

// Stands for NCCL's bootstrap: passes the handle of each rank to all ranks.
class Exchange {
 public:
  explicit Exchange(size_t ranks) : handles_(ranks) {}

  std::vector<Handle> all(size_t rank, const Handle& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    handles_[rank] = mine;
    const size_t whole = (here_ / handles_.size() + 1) * handles_.size();
    ++here_;
    changed_.notify_all();
    changed_.wait(lock, [this, whole] { return here_ >= whole; });
    return handles_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Handle> handles_;
  size_t here_ = 0;
};

void wait(void* request) {
  for (int done = 0; !done;) {
    CHECK(table.test(request, &done, nullptr) == nccl::kSuccess);
    if (!done) std::this_thread::yield();
  }
}

void all_reduces(void* comm, size_t rank, size_t ranks) {
  std::vector<std::vector<float>> sends(kInFlight), receives(kInFlight);
  std::vector<void*> requests(kInFlight);
  for (size_t i = 0; i < kInFlight; ++i) {
    sends[i].assign(1 + 3'000 * i, static_cast<float>(rank + i));
    receives[i].resize(sends[i].size());
    CHECK(table.iallreduce(comm, sends[i].data(), receives[i].data(), sends[i].size(),
                           nccl::kFloat32, nccl::kSum, nullptr, nullptr,
                           &requests[i]) == nccl::kSuccess);
    CHECK(requests[i] != nullptr);
  }
  void* one_more = &requests;
  CHECK(table.iallreduce(comm, sends[0].data(), receives[0].data(), 1, nccl::kFloat32, nccl::kSum,
                         nullptr, nullptr, &one_more) == nccl::kSuccess);
  CHECK(one_more == nullptr);
  for (size_t i = kInFlight; i-- > 0;) {
    wait(requests[i]);
    const auto sum = static_cast<float>(ranks * i + ranks * (ranks - 1) / 2);
    for (const float value : receives[i]) CHECK(value == sum);
  }
}

// 1,000 elements per rank, in windows whose ends are not the ends of the parts of ranks.
void windows(void* comm, size_t rank, size_t ranks) {
  constexpr size_t kPerRank = 1'000, kWindow = 1'536;
  std::vector<int32_t> row(kPerRank * ranks), given(row.size()), mine(kPerRank), sums(kPerRank);
  for (size_t i = 0; i < kPerRank; ++i) mine[i] = static_cast<int32_t>(rank * kPerRank + i);
  for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<int32_t>(i * (rank + 1));
  for (size_t begin = 0; begin < row.size(); begin += kWindow) {
    const size_t end = std::min(begin + kWindow, row.size());
    const size_t at = std::min(std::max(begin, rank * kPerRank), (rank + 1) * kPerRank);
    nccl::Sge<size_t> part{nullptr, &row[begin], (end - begin) * 4};
    void* request = nullptr;
    CHECK(table.iallgather(comm, mine.data() + (at - rank * kPerRank), 1, &part, kPerRank * 4,
                           begin * 4, part.size, nullptr, &request) == nccl::kSuccess);
    wait(request);
    part.address = &given[begin];
    CHECK(table.ireducescatter(comm, 1, &part, sums.data() + (at - rank * kPerRank), kPerRank * 4,
                               begin * 4, part.size, nccl::kInt32, nccl::kSum, nullptr,
                               &request) == nccl::kSuccess);
    wait(request);
  }
  for (size_t i = 0; i < row.size(); ++i) CHECK(row[i] == static_cast<int32_t>(i));
  const size_t factor = ranks * (ranks + 1) / 2;
  for (size_t i = 0; i < kPerRank; ++i) {
    CHECK(sums[i] == static_cast<int32_t>((rank * kPerRank + i) * factor));
  }
}

// Closes while results arrive in the plugin's own memory, which holds the sums of other ranks'
// parts.
void close_in_flight(void* comm, size_t rank, size_t ranks, Exchange* exchange) {
  constexpr size_t kPerRank = 20'000;
  std::vector<float> given(kPerRank * ranks, 1), sums(kPerRank);
  nccl::Sge<size_t> part{nullptr, given.data(), given.size() * 4};
  for (size_t i = 0; i < kInFlight; ++i) {
    void* request = nullptr;
    CHECK(table.ireducescatter(comm, 1, &part, sums.data(), kPerRank * 4, 0, part.size,
                               nccl::kFloat32, nccl::kSum, nullptr, &request) == nccl::kSuccess);
    CHECK(request != nullptr);
  }
  (void)exchange->all(rank, {});  // wait for all: a rank that closes ends the requests of all ranks
  CHECK(table.close_coll(comm) == nccl::kSuccess);
}

// A rank connects again only when all ranks have closed.
void* meet(void* context, size_t rank, size_t ranks, Exchange* exchange) {
  Handle handle(nccl::kHandleBytes);
  void* listen = nullptr;
  CHECK(table.listen(context, 0, handle.data(), &listen) == nccl::kSuccess);
  std::vector<Handle> all = exchange->all(rank, handle);
  std::vector<void*> handles;
  for (Handle& one : all) handles.push_back(one.data());
  void* comm = nullptr;
  CHECK(table.connect(handles.data(), static_cast<int>(ranks), static_cast<int>(rank), listen,
                      &comm) == nccl::kSuccess);
  CHECK(table.close_listen(listen) == nccl::kSuccess);
  return comm;
}

void work(size_t rank, size_t ranks, int rounds, Exchange* exchange) {
  void* context = nullptr;
  CHECK(table.init(&context, 7, log) == nccl::kSuccess);
  for (int round = 0; round < rounds; ++round) {
    void* comm = meet(context, rank, ranks, exchange);
    all_reduces(comm, rank, ranks);
    windows(comm, rank, ranks);
    CHECK(table.close_coll(comm) == nccl::kSuccess);
    close_in_flight(meet(context, rank, ranks, exchange), rank, ranks, exchange);
  }
  CHECK(table.finalize(context) == nccl::kSuccess);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  ::setenv("NCCL_COLLNET_ENABLE", "1", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  const size_t ranks = std::strtoul(argv[1], nullptr, 10);
  const int rounds = std::atoi(argv[2]);
  Exchange exchange(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(work, rank, ranks, rounds, &exchange);
  }
  for (std::thread& thread : threads) thread.join();
}
