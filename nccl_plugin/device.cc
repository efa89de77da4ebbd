#include "device.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

namespace ors::nccl {
namespace {

constexpr int kUnknownSpeed = 10'000;  // NCCL's default if a NIC reports no speed

bool begins(const std::string& text, const std::string& with) {
  return text.compare(0, with.size(), with) == 0;
}

bool is_loopback(const std::string& interface) { return begins(interface, "lo"); }
bool is_docker(const std::string& interface) { return begins(interface, "docker"); }

std::string system_file(const std::string& interface, const char* name) {
  return "/sys/class/net/" + interface + "/" + name;
}

std::string pci_path(const std::string& interface) {
  const std::unique_ptr<char, decltype(&::free)> path(
      ::realpath(system_file(interface, "device").c_str(), nullptr), &::free);
  return path == nullptr ? "" : path.get();
}

int speed(const std::string& interface) {
  int megabits = 0;
  std::ifstream(system_file(interface, "speed")) >> megabits;
  return megabits > 0 ? megabits : kUnknownSpeed;
}

std::string vendor(const std::string& interface) {
  std::string number;
  std::ifstream(system_file(interface, "device/vendor")) >> number;
  return number;
}

uint64_t hardware_address(const std::string& interface) {
  std::string text;
  std::ifstream(system_file(interface, "address")) >> text;
  text.erase(std::remove(text.begin(), text.end(), ':'), text.end());
  return std::strtoull(text.c_str(), nullptr, 16);
}

std::optional<SocketAddress> address_of(const sockaddr* from) {
  SocketAddress address;
  if (from->sa_family == AF_INET) {
    address.size = sizeof(sockaddr_in);
  } else if (from->sa_family == AF_INET6 &&
             !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr)) {
    address.size = sizeof(sockaddr_in6);
  } else {
    return std::nullopt;
  }
  std::memcpy(&address.storage, from, address.size);
  return address;
}

// One device for each interface that is up and has an address. IPv4 comes first; otherwise the
// order is the system's.
std::vector<Device> all_devices() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  std::vector<Device> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      const std::string name = entry->ifa_name;
      const auto same = [&](const Device& device) { return device.name == name; };
      if (std::any_of(found.begin(), found.end(), same)) continue;
      const auto address = address_of(entry->ifa_addr);
      if (!address) continue;
      found.push_back(
          {name, pci_path(name), vendor(name), hardware_address(name), speed(name), *address});
    }
  }
  ::freeifaddrs(list);
  return found;
}

// Whether NCCL_SOCKET_IFNAME selects an interface: "eth,ib" are prefixes, "=eth0,eth1" exact names,
// and "^docker" excludes a prefix. An empty value selects all but loopback and docker; the caller
// takes those two if nothing else is left.
bool matches(const std::string& interface, const std::string& wish) {
  if (wish.empty()) return !is_loopback(interface) && !is_docker(interface);
  const bool all_but = wish.front() == '^';
  const size_t mark = all_but ? 1 : 0;
  const bool exact = wish.size() > mark && wish[mark] == '=';
  bool named = false;
  for (size_t begin = mark + (exact ? 1 : 0); begin < wish.size();) {
    const size_t end = std::min(wish.find(',', begin), wish.size());
    const std::string part = wish.substr(begin, end - begin);
    named |= !part.empty() && (exact ? interface == part : begins(interface, part));
    begin = end + 1;
  }
  return named != all_but;
}

std::vector<Device> find_devices() {
  const char* wish = std::getenv("NCCL_SOCKET_IFNAME");
  const std::vector<Device> all = all_devices();
  const auto kept = [&all](const auto& keep) {
    std::vector<Device> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                 [&](const Device& device) { return keep(device.name); });
    return some;
  };
  if (wish != nullptr && *wish != '\0') {
    return kept([&](const std::string& name) { return matches(name, wish); });
  }
  auto found = kept([](const std::string& name) { return matches(name, ""); });
  if (found.empty()) found = kept(is_docker);
  if (found.empty()) found = kept(is_loopback);
  return found;
}

}  // namespace

const std::vector<Device>& devices() {
  static const std::vector<Device> found = find_devices();
  return found;
}

}  // namespace ors::nccl
