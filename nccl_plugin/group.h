// One communicator of CollNet: an engine that has joined a run with all other ranks, and requests.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi.h"
#include "io/loop.h"

namespace ors::nccl {

constexpr size_t kCollRequests = 64;  // 8 for each of NCCL's 8 groups of channels

class Group;

// A call of NCCL's: the rounds that it became, and what is left to do when they are over.
struct CollRequest {
  Group* group = nullptr;
  bool busy = false;
  std::vector<OperationRef> operations;
  size_t size = 0;  // of the result, bytes

  // A result that nobody but us has room for: bytes [begin, begin + size) of it go to `receive`.
  std::vector<uint8_t> scratch;
  uint8_t* receive = nullptr;
  size_t begin = 0;
};

class Group {
 public:
  Group(const Options& options, Secret key);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Meets all ranks within the connect timeout; what went wrong, else nullopt. No rank gets in
  // before all have joined. One that loses its reducers in that very moment fails alone: the
  // others' first request then fails with kRemoteError.
  std::optional<std::string> join();

  const std::string& run() const { return options_.run_id; }
  uint32_t rank() const { return options_.rank; }
  uint32_t world_size() const { return options_.world_size; }

  CollRequest* take();  // null: all are in use
  Result begin(CollRequest* request, const Descriptor& round, const uint8_t* source,
               size_t source_bytes, uint8_t* target, size_t target_bytes);
  Result test(CollRequest* request, int* done, int* size);
  void give_back(CollRequest* request);

  void leave();  // cleanly, unless requests are in flight

 private:
  Result failed(const Failure& failure);
  void tell_stalls();

  const Options options_;
  std::array<CollRequest, kCollRequests> requests_;
  Engine engine_;  // ends before the scratch memory that its thread writes to
  std::vector<std::string> keys_;
  uint64_t begun_ = 0;
  double stalls_told_ = 0;
  bool told_ = false;
};

}  // namespace ors::nccl
