// The error of a failed operation, connection or run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "codec/wire.h"

namespace ors {

struct Failure {
  Failure() = default;
  Failure(ErrorCode its_code, std::string text, std::string word = {}, int64_t of_rank = -1)
      : code(its_code), message(std::move(text)), rank(of_rank), reason(std::move(word)) {}

  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int64_t rank = -1;
  std::string reason;
  std::string key;
  int64_t round = -1;
};

}  // namespace ors
