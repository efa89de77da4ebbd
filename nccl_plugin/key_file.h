// Key files as `reducer keygen` writes them: a line of base64url text, of the reducers' key or,
// behind "job-key:", of one job's.
//
// Law: no text of this module has a byte of a key.
#pragma once

#include <optional>
#include <string>

#include "crypto/hmac.h"

namespace ors::nccl {

// The key of `job`. nullopt, and *why, for a file that is not there, that others can read, or that
// holds no key.
std::optional<Secret> read_key(const std::string& path, const std::string& job, std::string* why);

}  // namespace ors::nccl
