// Random bytes from the kernel, for unique ids, nonces and jitter.
#pragma once

#include <cstddef>
#include <string>

namespace ors {

std::string random_bytes(size_t size);

// Returns a number in [0, 1).
double random_fraction();

}  // namespace ors
