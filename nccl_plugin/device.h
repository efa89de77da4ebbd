// The NICs of this host, as NCCL is told of them: one list for ncclNet and ncclCollNet alike, since
// NCCL merges the two by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "socket.h"

namespace ors::nccl {

struct Device {
  std::string name;      // of the interface
  std::string pci_path;  // below /sys/devices; empty: it has none
  uint64_t guid = 0;     // of the chip: its MAC address
  int speed = 0;         // Mbit/s
  SocketAddress address;
};

// Which interfaces NCCL_SOCKET_IFNAME means: "eth,ib" begin so, "=eth0,eth1" are these, "^docker"
// all others. Empty: all but loopback and docker, and these where there is nothing else.
bool matches(const std::string& interface, const std::string& wish);

// Looked up once in a process; never changes.
const std::vector<Device>& devices();

}  // namespace ors::nccl
