// The boundary to C: turns an exception into a result and a line in the log.
#pragma once

#include <exception>

#include "abi.h"
#include "log.h"

namespace ors::nccl {

template <class Call>
Result guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::exception& error) {
    try {
      log_warning(error.what());
    } catch (...) {  // no memory for the text
    }
    return kSystemError;
  }
}

}  // namespace ors::nccl
