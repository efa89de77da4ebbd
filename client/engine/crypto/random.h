// Random bytes from the kernel: for names that must not repeat, nonces, and waits that must differ.
#pragma once

#include <cstddef>
#include <string>

namespace ors {

std::string random_bytes(size_t size);

// From 0 to below 1.
double random_fraction();

}  // namespace ors
