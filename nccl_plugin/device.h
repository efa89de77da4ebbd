// The NICs of this host, as NCCL is told of them: one list for ncclNet and ncclCollNet alike, since
// NCCL merges the two by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/socket.h"

namespace ors::nccl {

struct Device {
  std::string name;      // of the interface
  std::string pci_path;  // below /sys/devices; empty: it has none
  uint64_t guid = 0;     // of the chip: its MAC address
  int speed = 0;         // Mbit/s
  SocketAddress address;
};

// Those that NCCL_SOCKET_IFNAME means; looked up once in a process, never changes.
const std::vector<Device>& devices();

}  // namespace ors::nccl
