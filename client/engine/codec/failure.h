// The error of a failed operation, connection or run.
#pragma once

#include <cstdint>
#include <string>

#include "codec/wire.h"

namespace ors {

struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int64_t rank = -1;
  std::string reason;
  std::string key;
  int64_t round = -1;
};

}  // namespace ors
