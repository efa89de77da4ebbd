// How many loops an engine has, and on which processors they run.
#pragma once

#include <sched.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ors {

constexpr uint32_t kMaxLoops = 16;

struct Nic {
  int64_t megabits = 0;  // per second; 0: the system does not know
  int node = -1;         // NUMA node; -1: the system does not know
};

// The interface `source`, or the fastest of this machine if that is not an interface's name. `sys`
// is where sysfs is mounted.
Nic find_nic(const std::string& source, const std::string& sys = "/sys");

// The number of loops that can move the NIC's bytes, with at most a quarter of the processors.
uint32_t default_loops(const Nic& nic, uint32_t processors);

// `wanted`, or the default for this machine if that is 0.
uint32_t choose_loops(uint32_t wanted, const std::string& source);

// The processors of `all` that belong to the NUMA node; all if none does or the node is unknown.
cpu_set_t near_node(const cpu_set_t& all, int node, const std::string& sys = "/sys");

// Lets this thread run wherever the main thread could run when this library was loaded, on the
// processors near the NIC if there are some. A thread inherits the processors of its creator, and a
// training program may have pinned that one.
void leave_the_creators_processors(const std::string& source);

}  // namespace ors
