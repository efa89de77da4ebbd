// How many sockets and threads the connections of a NIC have.
#pragma once

#include <cstddef>
#include <string>

#include "net_settings.h"

namespace ors::nccl {

struct NetPlan {
  size_t threads = 0;  // helper threads at each end
  size_t sockets = 1;  // those of the threads, and one of the caller; without threads, all
};

// By the settings; what they leave open, as NCCL's own sockets would choose. `vendor` is the PCI
// vendor of the NIC as sysfs prints it, empty if it has none.
NetPlan plan_connection(const std::string& vendor, const NetSettings& settings);

}  // namespace ors::nccl
