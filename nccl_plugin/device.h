// The NICs of this host that the plugin reports to NCCL. ncclNet and ncclCollNet report the same
// list, since NCCL merges the two by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/socket.h"

namespace ors::nccl {

struct Device {
  std::string name;      // the name of the interface
  std::string pci_path;  // below /sys/devices; empty if there is none
  std::string vendor;    // the PCI vendor, such as 0x1d0f; empty if there is none
  uint64_t guid = 0;     // the MAC address
  int speed = 0;         // Mbit/s
  SocketAddress address;
};

// The NICs selected by NCCL_SOCKET_IFNAME. The list is read once per process and never changes.
const std::vector<Device>& devices();

}  // namespace ors::nccl
