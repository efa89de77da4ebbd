#include "crypto/openssl.h"

#include <dlfcn.h>

namespace ors {
namespace {

// Null with *trouble set. Never closed: OpenSSL registers what runs at the end of the process.
std::unique_ptr<OpenSsl> load(const OpenSslNames& names, std::string* trouble) {
  void* ssl = ::dlopen(names.ssl.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* crypto = ssl != nullptr ? ::dlopen(names.crypto.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (crypto == nullptr) {
    const char* said = ::dlerror();
    *trouble = said != nullptr ? said : "not found";
    return nullptr;
  }
  auto found = std::make_unique<OpenSsl>();
#define ORS_FIND(library, result, name, arguments)                              \
  found->name = reinterpret_cast<result(*) arguments>(::dlsym(library, #name)); \
  if (found->name == nullptr) {                                                 \
    *trouble = names.library + " has no " #name ": it is older than 1.1.1";     \
    return nullptr;                                                             \
  }
  ORS_OPENSSL_FUNCTIONS(ORS_FIND)
#undef ORS_FIND
  return found;
}

}  // namespace

std::unique_ptr<const OpenSsl> load_openssl(const std::vector<OpenSslNames>& names,
                                            std::string* why) {
  std::string sought;
  for (const OpenSslNames& pair : names) {
    std::string trouble;
    if (auto found = load(pair, &trouble)) return found;
    sought +=
        (sought.empty() ? "" : ", ") + pair.ssl + " with " + pair.crypto + " (" + trouble + ")";
  }
  *why = "mode tls needs OpenSSL 1.1.1 or later, and this machine has none: sought " + sought +
         "; install it (Debian and Ubuntu: apt-get install libssl3; Fedora: dnf install "
         "openssl-libs; conda: conda install openssl)";
  return nullptr;
}

const OpenSsl* system_openssl(std::string* why) {
  static std::string trouble;
  static const OpenSsl* const found =
      load_openssl({{"libssl.so.3", "libcrypto.so.3"}, {"libssl.so.1.1", "libcrypto.so.1.1"}},
                   &trouble)
          .release();
  if (found == nullptr) *why = trouble;
  return found;
}

}  // namespace ors
