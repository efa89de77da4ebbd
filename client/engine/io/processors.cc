#include "io/processors.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace ors {
namespace {

// One loop moves 24 Gbit/s each way over loopback and 12 with frames of 1,500 bytes
// (docs/speed.md); NICs that segment and merge packets lie in between.
constexpr int64_t kMegabitsPerLoop = 20'000;
// More loops gain nothing: their State is guarded by one mutex.
constexpr uint32_t kMostByDefault = 8;

cpu_set_t of_main_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more than 1,024 processors: then the set is empty and never used.
  (void)::sched_getaffinity(::getpid(), sizeof set, &set);
  return set;
}

const cpu_set_t at_load = of_main_thread();

int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

Nic read_nic(const std::string& folder) {
  // A NIC that is down and most virtual ones have no speed, or -1.
  return {std::max<int64_t>(0, read_number(folder + "/speed", 0)),
          static_cast<int>(read_number(folder + "/device/numa_node", -1))};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  return names;
}

}  // namespace

Nic find_nic(const std::string& source, const std::string& sys) {
  const std::string all = sys + "/class/net/";
  Nic fastest;
  for (const std::string& name : names_in(all)) {
    const Nic nic = read_nic(all + name);
    if (name == source) return nic;
    if (nic.megabits > fastest.megabits) fastest = nic;
  }
  return fastest;
}

uint32_t default_loops(const Nic& nic, uint32_t processors) {
  const int64_t needed = (nic.megabits + kMegabitsPerLoop - 1) / kMegabitsPerLoop;
  const int64_t most = std::min<int64_t>(kMostByDefault, processors / 4);
  return static_cast<uint32_t>(std::max<int64_t>(1, std::min(needed, most)));
}

uint32_t choose_loops(uint32_t wanted, const std::string& source) {
  if (wanted > 0) return std::min(wanted, kMaxLoops);
  return default_loops(find_nic(source), static_cast<uint32_t>(CPU_COUNT(&at_load)));
}

// The list of a node is like "0-15,32-47".
cpu_set_t near_node(const cpu_set_t& all, int node, const std::string& sys) {
  std::ifstream file(sys + "/devices/system/node/node" + std::to_string(node) + "/cpulist");
  cpu_set_t near;
  CPU_ZERO(&near);
  for (std::string range; std::getline(file, range, ',');) {
    const long first = std::strtol(range.c_str(), nullptr, 10);
    const size_t dash = range.find('-');
    const bool alone = dash == range.npos;
    const long last = alone ? first : std::strtol(range.c_str() + dash + 1, nullptr, 10);
    for (long cpu = std::max(0L, first); cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      CPU_SET(static_cast<int>(cpu), &near);
    }
  }
  CPU_AND(&near, &near, &all);
  return CPU_COUNT(&near) > 0 ? near : all;
}

void leave_the_creators_processors(const std::string& source) {
  if (CPU_COUNT(&at_load) == 0) return;
  const cpu_set_t wanted = near_node(at_load, find_nic(source).node);
  // The kernel leaves out what the cpuset excludes, and refuses a set of which nothing is left.
  if (::sched_setaffinity(0, sizeof wanted, &wanted) != 0) {
    (void)::sched_setaffinity(0, sizeof at_load, &at_load);
  }
}

}  // namespace ors
