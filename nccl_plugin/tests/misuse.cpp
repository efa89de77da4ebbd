// Calls that NCCL does not make, and handles that no listener made, fail or do nothing; they do not
// crash. These tests need no reducers; ../../tests/nccl/test_misuse.py has those with
// communicators.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "abi.h"
#include "abi_tuner.h"
#include "check.h"
#include "net_ends.h"

using CollTable = ors::nccl::CollNetV11<ors::nccl::PropertiesV12, ors::nccl::VDevice8>;
extern "C" const CollTable ncclCollNetPlugin_v12;
extern "C" const ors::nccl::TunerV1 ncclTunerPlugin_v1;

namespace ors::nccl {
namespace {

const CollTable& coll = ncclCollNetPlugin_v12;

struct CollListening {
  CollListening() { CHECK(coll.listen(nullptr, 0, handle.data(), &comm) == kSuccess); }
  ~CollListening() { CHECK(coll.close_listen(comm) == kSuccess); }
  CollListening(const CollListening&) = delete;
  HandleBytes handle;
  void* comm = nullptr;
};

Result coll_connect(const CollListening& listening, HandleBytes handle, int ranks, int rank) {
  void* handles[] = {handle.data(), handle.data()};
  void* comm = &handles;
  const Result result = coll.connect(handles, ranks, rank, listening.comm, &comm);
  CHECK(comm == nullptr);
  return result;
}

void test_before_init() {
  HandleBytes handle{};
  void* comm = nullptr;
  CHECK(coll.listen(nullptr, 0, handle.data(), &comm) == kSystemError && comm == nullptr);
}

// Several threads call at the same time, as the threads of several communicators do.
void test_init_by_many() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      void* context = &context;
      CHECK(coll.init(&context, 7, nullptr) == kSuccess);
      CHECK(ncclTunerPlugin_v1.init(8, 2, nullptr) == kSuccess);
      int algorithm = -1;
      int protocol = -1;
      CHECK(ncclTunerPlugin_v1.get_coll_info(kFunctionAllReduce, 1 << 20, 1, 0, 1, &algorithm,
                                             &protocol, nullptr) == kSuccess);
      CHECK(algorithm == kCollNetChain);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void test_impossible_ranks() {
  const CollListening listening;
  for (const auto& [ranks, rank] : std::vector<std::array<int, 2>>{
           {0, 0}, {-1, 0}, {-1, -2}, {2, 2}, {2, -1}, {1, 1}, {INT32_MIN, INT32_MIN}}) {
    CHECK(coll_connect(listening, listening.handle, ranks, rank) == kInvalidArgument);
  }
  void* comm = &comm;
  CHECK(coll.connect(nullptr, 1, 0, listening.comm, &comm) == kInvalidArgument && comm == nullptr);
  void* handles[] = {const_cast<uint8_t*>(listening.handle.data())};
  CHECK(coll.connect(handles, 1, 0, nullptr, &comm) == kInvalidArgument);
}

void test_foreign_handles_of_collnet() {
  const CollListening listening;
  HandleBytes magic = listening.handle;
  magic[0] ^= 1;
  HandleBytes reducers = listening.handle;
  reducers[8 + 16] ^= 1;
  for (const HandleBytes& handle : {magic, reducers, HandleBytes{}}) {
    CHECK(coll_connect(listening, handle, 2, 0) == kInvalidUsage);
  }
}

void test_closing_nothing() {
  {
    const CollListening unused;
  }
  {
    const Listening unused;
  }
  CHECK(coll.close_coll(nullptr) == kSuccess && coll.close_listen(nullptr) == kSuccess);
  CHECK(net_close(nullptr) == kSuccess && net_close(nullptr) == kSuccess);
  CHECK(net_close_listen(nullptr) == kSuccess);
}

// Calls net_connect until the attempt ends, and returns its result.
Result outcome_of(HandleBytes handle) {
  void* comm = nullptr;
  Result result = kSuccess;
  wait_until([&] {
    result = net_connect(0, handle.data(), &comm);
    return result != kSuccess || comm != nullptr;
  });
  CHECK(net_close(comm) == kSuccess);
  return result;
}

// No bytes of a handle make the plugin use them as a pointer.
void test_foreign_handles_of_net() {
  constexpr size_t kHost = 12;  // the IPv4 host: unchanged, so that no other host is dialled
  constexpr size_t kListener = 36;
  constexpr size_t kState = 52;
  const Listening listening;
  HandleBytes handle;
  for (size_t at = 0; at < kHandleBytes; ++at) {
    if (at >= kHost && at < kListener) continue;
    handle = listening.handle;
    handle[at] ^= 0x55;
    const Result result = outcome_of(handle);
    if (at < kHost) CHECK(result == kInvalidArgument || result == kRemoteError);
    if (at >= kState && at < kState + 16) CHECK(result == kInvalidArgument);
  }
  handle.fill(0xEE);
  CHECK(outcome_of(handle) == kInvalidArgument);
}

void test_sizes_that_no_message_has() {
  const Pair pair;
  uint8_t byte = 0;
  for (const size_t size : {kMaxNetBytes + 1, size_t{1} << 32, size_t{1} << 63, SIZE_MAX}) {
    void* request = nullptr;
    CHECK(net_isend(pair.send, &byte, size, &request) == kInvalidArgument && request == nullptr);
    CHECK(net_irecv(pair.receive, &byte, size, &request) == kInvalidArgument);
    CHECK(request == nullptr);
  }
  exchange(pair, 1000, 1, true);  // the connection still works
}

void test_all() {
  test_before_init();
  test_init_by_many();
  test_impossible_ranks();
  test_foreign_handles_of_collnet();
  test_closing_nothing();
  test_foreign_handles_of_net();
  test_sizes_that_no_message_has();
}

}  // namespace
}  // namespace ors::nccl

int main() {
  ::setenv("NCCL_COLLNET_ENABLE", "1", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("REDUCER_ADDRS", "127.0.0.1:1", 1);
  ::alarm(300);
  ors::nccl::test_all();
}
