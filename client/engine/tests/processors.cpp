// Tests the choice of the loops' number and processors, on made-up trees of sysfs.
#include "io/processors.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.h"

namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

void make_sys(const std::string& sys) {
  write(sys + "/class/net/lo/address", "00:00:00:00:00:00");
  write(sys + "/class/net/eth0/speed", "10000");
  write(sys + "/class/net/eth0/device/numa_node", "0");
  write(sys + "/class/net/eth1/speed", "100000");
  write(sys + "/class/net/eth1/device/numa_node", "1");
  write(sys + "/class/net/virtual0/speed", "-1");
  write(sys + "/devices/system/node/node1/cpulist", "2-3,6");
}

cpu_set_t processors(std::initializer_list<int> numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : numbers) CPU_SET(number, &set);
  return set;
}

bool equal(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b) != 0; }

void test_nic(const std::string& sys) {
  const ors::Nic fastest = ors::find_nic("", sys);
  CHECK(fastest.megabits == 100'000 && fastest.node == 1);
  CHECK(ors::find_nic("10.0.0.7", sys).megabits == 100'000);  // an address names no interface
  CHECK(ors::find_nic("eth0", sys).megabits == 10'000);
  CHECK(ors::find_nic("virtual0", sys).megabits == 0);
  CHECK(ors::find_nic("lo", sys).node == -1);
  CHECK(ors::find_nic("", sys + "/nothing").megabits == 0);
}

void test_number() {
  CHECK(ors::default_loops({1'000, -1}, 64) == 1);
  CHECK(ors::default_loops({0, -1}, 64) == 1);
  CHECK(ors::default_loops({25'000, -1}, 64) == 2);
  CHECK(ors::default_loops({100'000, -1}, 64) == 5);
  CHECK(ors::default_loops({100'000, -1}, 16) == 4);  // a quarter of the processors
  CHECK(ors::default_loops({100'000, -1}, 2) == 1);
  CHECK(ors::default_loops({800'000, -1}, 256) == 8);
  CHECK(ors::choose_loops(3, "") == 3);
  CHECK(ors::choose_loops(99, "") == ors::kMaxLoops);
}

void test_node(const std::string& sys) {
  const cpu_set_t all = processors({0, 1, 2, 3, 4, 5});
  CHECK(equal(ors::near_node(all, 1, sys), processors({2, 3})));  // 6 is not ours
  CHECK(equal(ors::near_node(all, 0, sys), all));                 // an unknown node
  CHECK(equal(ors::near_node(all, -1, sys), all));
  CHECK(equal(ors::near_node(processors({0}), 1, sys), processors({0})));
}

// A loop does not stay on the processor to which its creator is pinned.
void test_pinned_creator() {
  cpu_set_t before;
  CHECK(::sched_getaffinity(0, sizeof before, &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  const cpu_set_t one = processors({first});
  CHECK(::sched_setaffinity(0, sizeof one, &one) == 0);
  ors::leave_the_creators_processors("lo");
  cpu_set_t after;
  CHECK(::sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(equal(after, before));
}

}  // namespace

int main() {
  char folder[] = "/tmp/ors-sys-XXXXXX";
  CHECK(::mkdtemp(folder) != nullptr);
  make_sys(folder);
  test_nic(folder);
  test_number();
  test_node(folder);
  test_pinned_creator();
  std::filesystem::remove_all(folder);
}
