// Key files as `reducer keygen` writes them: one line of base64url text, with the reducers' key or,
// behind "job-key:", the key of one job.
//
// Law: no text of this module contains a byte of a key.
#pragma once

#include <optional>
#include <string>

#include "crypto/hmac.h"

namespace ors::nccl {

// The key of `job`. Returns nullopt, with the reason in *why, if the file is missing, if others can
// access it, or if it has no key.
std::optional<Secret> read_key(const std::string& path, const std::string& job, std::string* why);

}  // namespace ors::nccl
