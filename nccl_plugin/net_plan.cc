#include "net_plan.h"

#include <algorithm>

namespace ors::nccl {
namespace {

struct Choice {
  int threads;
  int sockets;
};

// NCCL takes these numbers for the NICs of AWS and of Google's cloud, and otherwise no thread and
// one socket (net_socket.cc of NCCL 2.30.7). Without threads, four sockets cost this plugin
// nothing.
Choice by_vendor(const std::string& vendor) {
  if (vendor == "0x1d0f") return {2, 16};
  if (vendor == "0x1ae0") return {4, 4};
  return {0, 4};
}

}  // namespace

NetPlan plan_connection(const std::string& vendor, const NetSettings& settings) {
  const Choice usual = by_vendor(vendor);
  int threads = settings.threads == kByNic ? usual.threads : settings.threads;
  threads = std::clamp(threads, 0, static_cast<int>(kMaxNetThreads));
  int sockets = settings.sockets == kByNic ? std::max(usual.sockets, threads) : settings.sockets;
  sockets = std::clamp(sockets, 1, static_cast<int>(kMaxHelpedSockets));
  threads = std::min(threads, sockets);
  return {static_cast<size_t>(threads), static_cast<size_t>(sockets + (threads > 0 ? 1 : 0))};
}

}  // namespace ors::nccl
