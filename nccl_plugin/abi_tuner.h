// The ABI between NCCL and a tuner: versions 1 to 6 (NCCL 2.19 to 2.32). Law: as in abi.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace ors::nccl {

enum Function : int { kFunctionAllReduce = 4 };
enum Algorithm : int { kCollNetDirect = 2, kCollNetChain = 3 };
enum Protocol : int { kSimple = 2 };
constexpr float kIgnored = -1;  // a cost: NCCL does not offer this algorithm and protocol

struct NvlDomains;
struct TunerConstants;

struct TunerV1 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger log);
  Result (*get_coll_info)(Function function, size_t bytes, int coll_net, int nvls, int operations,
                          int* algorithm, int* protocol, int* channels);
  Result (*destroy)();
};

// `costs` points to one array [algorithms][protocols] of microseconds, in spite of its type.
using TunerInitV2 = Result (*)(size_t ranks, size_t nodes, Logger log, void** context);
using TunerInitV5 = Result (*)(void** context, uint64_t comm_id, size_t ranks, size_t nodes,
                               Logger log, NvlDomains* domains, TunerConstants* constants);
using CollInfoV2 = Result (*)(void* context, Function function, size_t bytes, int coll_net,
                              int nvls, int operations, int* algorithm, int* protocol,
                              int* channels);
using CollInfoV3 = Result (*)(void* context, Function function, size_t bytes, int operations,
                              float** costs, int algorithms, int protocols, int* channels);
using CollInfoV4 = Result (*)(void* context, Function function, size_t bytes, int operations,
                              float** costs, int algorithms, int protocols, int registered,
                              int* channels);

template <class Init, class CollInfo>
struct TunerOf {
  const char* name;
  Init init;
  CollInfo get_coll_info;
  Result (*destroy)(void* context);
};

using TunerV2 = TunerOf<TunerInitV2, CollInfoV2>;
using TunerV3 = TunerOf<TunerInitV2, CollInfoV3>;
using TunerV4 = TunerOf<TunerInitV2, CollInfoV4>;
using TunerV5 = TunerOf<TunerInitV5, CollInfoV4>;

struct TunerV6 : TunerV5 {
  Result (*get_chunk_size)(void* context, Function function, size_t bytes, int algorithm,
                           int protocol, int channels, size_t* chunk);
};

static_assert(sizeof(TunerV1) == 4 * 8 && sizeof(TunerV5) == 4 * 8 && sizeof(TunerV6) == 5 * 8);

}  // namespace ors::nccl
