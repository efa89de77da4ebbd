// Lines through NCCL's own logger, so that NCCL_DEBUG governs them.
#pragma once

#include <string>

#include "abi.h"

namespace ors::nccl {

// The last one that NCCL gave; null: nothing is logged.
void set_logger(Logger logger);

void log_info(const std::string& text);
void log_warning(const std::string& text);

}  // namespace ors::nccl
