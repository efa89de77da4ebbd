// One communicator of CollNet: its requests, and an engine that joins a run with all other ranks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi.h"
#include "io/engine.h"

namespace ors::nccl {

constexpr size_t kCollRequests = 64;  // 8 for each of NCCL's 8 groups of channels

class Group;

// A collective that NCCL requested: its rounds, and the copy to do when the rounds are complete.
struct CollRequest {
  Group* group = nullptr;
  bool busy = false;
  std::vector<OperationRef> operations;
  size_t size = 0;  // bytes of the result

  // Holds a result that is larger than the caller's buffer: its bytes [begin, begin + size) are
  // copied to `receive`.
  std::vector<uint8_t> scratch;
  uint8_t* receive = nullptr;
  size_t begin = 0;
};

class Group {
 public:
  // `wire_dtype`: in which all-reduces send sums of float32.
  Group(const Options& options, Secret key, uint8_t wire_dtype);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Joins the run and waits for all ranks, within the connect timeout. Returns the error, or
  // nullopt. No rank returns before all have joined. A rank that loses its reducers at that moment
  // fails alone; the first request of the others then fails with kRemoteError.
  std::optional<std::string> join();

  const std::string& run() const { return options_.run_id; }
  uint32_t rank() const { return options_.rank; }
  uint32_t world_size() const { return options_.world_size; }
  uint8_t wire_dtype() const { return wire_dtype_; }

  CollRequest* take();  // null if all are in use
  Result begin(CollRequest* request, const Descriptor& round, const uint8_t* source,
               size_t source_bytes, uint8_t* target, size_t target_bytes);
  Result test(CollRequest* request, int* done, int* size);
  void give_back(CollRequest* request);

  void leave();  // says BYE to the reducers unless requests are in flight or the engine failed

 private:
  Result failed(const Failure& failure);
  void log_stalls();

  const Options options_;
  const uint8_t wire_dtype_;
  std::array<CollRequest, kCollRequests> requests_;
  Engine engine_;  // destroyed before the scratch memory, to which its thread writes
  std::vector<std::string> keys_;
  uint64_t begun_ = 0;
  double stalls_logged_ = 0;
  bool told_ = false;
};

}  // namespace ors::nccl
