// Tests loading OpenSSL: the first pair that exists is used; the error names all pairs that were
// tried. Also tests unusable certificate files. Without OpenSSL a part is not tested, and the exit
// status tells CTest that the test was skipped.
#include <string>

#include "check.h"
#include "crypto/tls.h"

namespace {

constexpr int kSkipped = 77;  // as in CMakeLists.txt

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void test_a_machine_without_it() {
  std::string why;
  CHECK(ors::load_openssl({{"libssl.so.none", "libcrypto.so.none"}, {"libssl.so.0", "x"}}, &why) ==
        nullptr);
  CHECK(has(why, "libssl.so.none with libcrypto.so.none") && has(why, "libssl.so.0 with x"));
  CHECK(has(why, "cannot open shared object file") && has(why, "apt-get install libssl3"));
}

void test_a_library_that_lacks_a_function() {
  std::string why;
  CHECK(ors::load_openssl({{"libc.so.6", "libc.so.6"}}, &why) == nullptr);
  CHECK(has(why, "libc.so.6 has no TLS_client_method"));
}

void test_the_first_that_is_there(const ors::OpenSsl& system) {
  std::string why;
  const auto found = ors::load_openssl({{"libssl.so.none", "x"},
                                        {"libssl.so.3", "libcrypto.so.3"},
                                        {"libssl.so.1.1", "libcrypto.so.1.1"}},
                                       &why);
  CHECK(found != nullptr && why.empty());
  CHECK(found->SSL_read == system.SSL_read && found->BIO_read == system.BIO_read);
}

void test_bad_files(const ors::OpenSsl& system) {
  std::string why;
  CHECK(ors::TlsContext::make(system, {"/none/cert", "/none/key", "/none/ca"}, &why) == nullptr);
  CHECK(has(why, "tls_ca /none/ca"));
}

}  // namespace

int main() {
  test_a_machine_without_it();
  test_a_library_that_lacks_a_function();
  std::string why;
  const ors::OpenSsl* system = ors::system_openssl(&why);
  if (system == nullptr) {
    std::fprintf(stderr, "the rest is not tested: %s\n", why.c_str());
    return kSkipped;
  }
  test_the_first_that_is_there(*system);
  test_bad_files(*system);
}
