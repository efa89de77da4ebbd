// The tables of the tuner: all-reduces of REDUCER_MIN_BYTES and more go through the reducers;
// smaller ones and other collectives do not. NCCL looks for a tuner in the library of its net.
// NCCL's own cost model does not know reducers: it may never choose them, or it may choose
// CollNetDirect for an all-gather, which reducers do not speed up.
//
// Law: no function fails, since a tuner that fails ends the communicator. If the plugin is not
// enabled, the tuner changes nothing.
#include <atomic>

#include "abi_tuner.h"
#include "plugin.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace ors::nccl {
namespace {

constexpr char kName[] = "REDUCER";
constexpr float kNever = 1e9f;  // microseconds

bool for_reducers(Function function, size_t bytes) {
  return function == kFunctionAllReduce && bytes >= settings().min_bytes;
}

// The context of a communicator: null if the plugin is not enabled.
void* new_context(Logger log) {
  static char wanted;
  return init(log) == kSuccess ? &wanted : nullptr;
}

Result start(size_t, size_t, Logger log, void** context) {
  *context = new_context(log);
  return kSuccess;
}

Result start_comm(void** context, uint64_t, size_t, size_t, Logger log, NvlDomains*,
                  TunerConstants*) {
  *context = new_context(log);
  return kSuccess;
}

Result end(void*) { return kSuccess; }

// Leaves a cost that is kIgnored unchanged.
Result set_costs(void* context, Function function, size_t bytes, int, float** costs, int algorithms,
                 int protocols, int*) {
  if (context == nullptr || protocols <= kSimple) return kSuccess;
  auto* row = reinterpret_cast<float*>(costs);
  const bool ours = for_reducers(function, bytes);
  for (const Algorithm algorithm : {kCollNetDirect, kCollNetChain}) {
    if (algorithm >= algorithms) continue;
    float& cost = row[algorithm * protocols + kSimple];
    if (cost == kIgnored) continue;
    if (!ours) cost = kNever;
    if (ours && algorithm == kCollNetChain) cost = 0;
  }
  return kSuccess;
}

Result set_costs_registered(void* context, Function function, size_t bytes, int operations,
                            float** costs, int algorithms, int protocols, int, int* channels) {
  return set_costs(context, function, bytes, operations, costs, algorithms, protocols, channels);
}

// NCCL chooses what the tuner leaves unset.
Result choose(void* context, Function function, size_t bytes, int coll_net, int, int,
              int* algorithm, int* protocol, int*) {
  if (context == nullptr || !coll_net || !for_reducers(function, bytes)) return kSuccess;
  *algorithm = kCollNetChain;
  *protocol = kSimple;
  return kSuccess;
}

std::atomic<void*> only_context{nullptr};  // version 1 has no contexts; shared by communicators

Result start_v1(size_t, size_t, Logger log) {
  only_context = new_context(log);
  return kSuccess;
}

Result choose_v1(Function function, size_t bytes, int coll_net, int nvls, int operations,
                 int* algorithm, int* protocol, int* channels) {
  return choose(only_context, function, bytes, coll_net, nvls, operations, algorithm, protocol,
                channels);
}

Result end_v1() { return kSuccess; }

}  // namespace

EXPORTED const TunerV1 ncclTunerPlugin_v1 = {kName, start_v1, choose_v1, end_v1};
EXPORTED const TunerV2 ncclTunerPlugin_v2 = {kName, start, choose, end};
EXPORTED const TunerV3 ncclTunerPlugin_v3 = {kName, start, set_costs, end};
EXPORTED const TunerV4 ncclTunerPlugin_v4 = {kName, start, set_costs_registered, end};
EXPORTED const TunerV5 ncclTunerPlugin_v5 = {kName, start_comm, set_costs_registered, end};
EXPORTED const TunerV6 ncclTunerPlugin_v6 = {{kName, start_comm, set_costs_registered, end},
                                             nullptr};

}  // namespace ors::nccl
