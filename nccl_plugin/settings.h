// The settings from the environment: the parameters (one table, in settings.cc) and the reducers.
// device.cc reads NCCL's own NCCL_SOCKET_IFNAME.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net_settings.h"
#include "protocol/run.h"

namespace ors::nccl {

// What the engines of all communicators have in common, and the plugin's own settings.
struct Settings : Options {
  Settings() {
    job = "nccl";
    loops = 0;
  }

  std::string found_in;  // the variable that has the addresses
  std::string key_file;
  uint32_t chunk_bytes = 64 << 10;
  uint64_t min_bytes = 1 << 20;
  uint8_t wire_dtype = kFloat32;  // in which sums of float32 in all-reduces are sent
  NetSettings net;
};

// Reads the environment of this process. Returns nullopt, with the reason in *why, if the plugin is
// not enabled or cannot run; *wrong tells whether the reason is an invalid setting.
std::optional<Settings> read_settings(std::string* why, bool* wrong);

// The name of wire_dtype, as in the environment.
std::string wire_name(const Settings& settings);

// A line for each parameter: name, value and meaning.
std::vector<std::string> describe(const Settings& settings);

}  // namespace ors::nccl
