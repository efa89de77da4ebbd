#include "crypto/openssl.h"

#include <dlfcn.h>

namespace ors {
namespace {

// Returns null and sets *trouble on failure. The library is never closed, because OpenSSL registers
// exit handlers.
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
  std::string tried;
  for (const OpenSslNames& pair : names) {
    std::string trouble;
    if (auto found = load(pair, &trouble)) return found;
    tried += (tried.empty() ? "" : ", ") + pair.ssl + " with " + pair.crypto + " (" + trouble + ")";
  }
  *why = "mode tls needs OpenSSL 1.1.1 or later, and none was found: tried " + tried +
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
