// Random bytes from the kernel, for names that must not repeat and for nonces.
#pragma once

#include <cstddef>
#include <string>

namespace ors {

std::string random_bytes(size_t size);

}  // namespace ors
