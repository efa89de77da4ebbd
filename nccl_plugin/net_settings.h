// The settings of the point-to-point transport. Not in net.h, because settings.cc uses the engine's
// numbers of dtypes, and abi.h has NCCL's under the same names.
#pragma once

#include <cstddef>

namespace ors::nccl {

constexpr size_t kMaxNetThreads = 16;
constexpr size_t kMaxHelpedSockets = 64;
constexpr size_t kMaxNetSockets = kMaxHelpedSockets + 1;  // with the caller's
constexpr int kByNic = -1;

struct NetSettings {
  int sockets = kByNic;      // per connection, 1 to kMaxHelpedSockets
  size_t piece = 128 << 10;  // maximum bytes of a message that go to one socket at a time
  int threads = kByNic;      // at each end of a connection, 0 to kMaxNetThreads
};

}  // namespace ors::nccl
