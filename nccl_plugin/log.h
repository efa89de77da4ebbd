// Logs through NCCL's own logger, so that NCCL_DEBUG controls the lines.
#pragma once

#include <string>

#include "abi.h"

namespace ors::nccl {

// Sets the logger. Each init of NCCL passes one, and the last one counts. Null logs nothing.
void set_logger(Logger logger);

void log_info(const std::string& text);
void log_warning(const std::string& text);

}  // namespace ors::nccl
