#include "log.h"

#include <atomic>

namespace ors::nccl {
namespace {

std::atomic<Logger> logger{nullptr};

void log(LogLevel level, const std::string& text) {
  const Logger to = logger.load();
  if (to != nullptr) to(level, kLogInit | kLogNet, "reducer", 0, "NET/REDUCER : %s", text.c_str());
}

}  // namespace

void set_logger(Logger to) { logger.store(to); }
void log_info(const std::string& text) { log(kLogInfo, text); }
void log_warning(const std::string& text) { log(kLogWarn, text); }

}  // namespace ors::nccl
