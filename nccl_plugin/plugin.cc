#include "plugin.h"

#include <mutex>
#include <optional>
#include <stdexcept>

#include "device.h"
#include "guarded.h"
#include "net.h"

namespace ors::nccl {
namespace {

std::mutex mutex;
std::optional<Settings> current;  // guarded by mutex until it is set, then constant

Result decline(const std::string& why, bool wrong) {
  const std::string text = "the reducers are not used: " + why;
  wrong ? log_warning(text) : log_info(text);
  return kInvalidUsage;
}

Result read_all() {
  std::string why;
  bool wrong = false;
  auto found = read_settings(&why, &wrong);
  if (!found) return decline(why, wrong);
  if (devices().empty()) return decline("no interface is up (NCCL_SOCKET_IFNAME)", true);
  net_settings() = found->net;
  for (const std::string& line : describe(*found)) log_info(line);
  current = std::move(found);
  return kSuccess;
}

}  // namespace

Result init(Logger log) {
  return guarded([&] {
    set_logger(log);
    const std::lock_guard<std::mutex> lock(mutex);
    return current ? kSuccess : read_all();
  });
}

const Settings& settings() {
  if (!current) throw std::logic_error("called without a successful init");
  return *current;
}

}  // namespace ors::nccl
