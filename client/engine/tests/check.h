// CHECK prints the line of a failed check and ends the program, in release builds as well.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

// How many loops the engines of a test have. The tests run with one and with three.
inline uint32_t loops_of_test() {
  const char* given = std::getenv("REDUCER_IO_THREADS");
  return given == nullptr ? 1 : static_cast<uint32_t>(std::atoi(given));
}
