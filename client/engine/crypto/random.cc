#include "crypto/random.h"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace ors {

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t got = 0; got < size;) {
    const ssize_t n = ::getrandom(bytes.data() + got, size - got, 0);
    if (n < 0 && errno != EINTR)
      throw std::system_error(errno, std::system_category(), "getrandom");
    if (n > 0) got += static_cast<size_t>(n);
  }
  return bytes;
}

double random_fraction() {
  uint32_t number;
  std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
  return number / 4294967296.0;
}

}  // namespace ors
