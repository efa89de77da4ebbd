// Loads, at run time, the functions of OpenSSL that mode tls needs. The build needs no OpenSSL
// headers, and all other modes work without OpenSSL.
//
// The declarations match the ABI of both 1.1.1 and 3.x: each function exists in both with the same
// arguments and opaque types, and OpenSSL does not change the constants. tls.cc calls *_ctrl
// directly where the OpenSSL headers have macros.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ors {

struct SSL_CTX;
struct SSL;
struct SSL_METHOD;
struct BIO;
struct BIO_METHOD;
struct X509_VERIFY_PARAM;
using PasswordCallback = int (*)(char* buffer, int size, int writing, void* data);
using VerifyCallback = int (*)(int good, void* store);

// F(library, result, name, arguments)
#define ORS_OPENSSL_FUNCTIONS(F)                                                         \
  F(ssl, const SSL_METHOD*, TLS_client_method, ())                                       \
  F(ssl, SSL_CTX*, SSL_CTX_new, (const SSL_METHOD*))                                     \
  F(ssl, void, SSL_CTX_free, (SSL_CTX*))                                                 \
  F(ssl, long, SSL_CTX_ctrl, (SSL_CTX*, int, long, void*))                               \
  F(ssl, int, SSL_CTX_set_ciphersuites, (SSL_CTX*, const char*))                         \
  F(ssl, void, SSL_CTX_set_verify, (SSL_CTX*, int, VerifyCallback))                      \
  F(ssl, void, SSL_CTX_set_default_passwd_cb, (SSL_CTX*, PasswordCallback))              \
  F(ssl, int, SSL_CTX_load_verify_locations, (SSL_CTX*, const char*, const char*))       \
  F(ssl, int, SSL_CTX_use_certificate_chain_file, (SSL_CTX*, const char*))               \
  F(ssl, int, SSL_CTX_use_PrivateKey_file, (SSL_CTX*, const char*, int))                 \
  F(ssl, SSL*, SSL_new, (SSL_CTX*))                                                      \
  F(ssl, void, SSL_free, (SSL*))                                                         \
  F(ssl, void, SSL_set_bio, (SSL*, BIO*, BIO*))                                          \
  F(ssl, void, SSL_set_connect_state, (SSL*))                                            \
  F(ssl, long, SSL_ctrl, (SSL*, int, long, void*))                                       \
  F(ssl, X509_VERIFY_PARAM*, SSL_get0_param, (SSL*))                                     \
  F(ssl, int, SSL_do_handshake, (SSL*))                                                  \
  F(ssl, int, SSL_read, (SSL*, void*, int))                                              \
  F(ssl, int, SSL_write, (SSL*, const void*, int))                                       \
  F(ssl, int, SSL_shutdown, (SSL*))                                                      \
  F(ssl, int, SSL_get_error, (const SSL*, int))                                          \
  F(ssl, long, SSL_get_verify_result, (const SSL*))                                      \
  F(crypto, const BIO_METHOD*, BIO_s_mem, ())                                            \
  F(crypto, BIO*, BIO_new, (const BIO_METHOD*))                                          \
  F(crypto, int, BIO_read, (BIO*, void*, int))                                           \
  F(crypto, int, BIO_write, (BIO*, const void*, int))                                    \
  F(crypto, size_t, BIO_ctrl_pending, (BIO*))                                            \
  F(crypto, int, X509_VERIFY_PARAM_set1_host, (X509_VERIFY_PARAM*, const char*, size_t)) \
  F(crypto, int, X509_VERIFY_PARAM_set1_ip_asc, (X509_VERIFY_PARAM*, const char*))       \
  F(crypto, const char*, X509_verify_cert_error_string, (long))                          \
  F(crypto, unsigned long, ERR_get_error, ())                                            \
  F(crypto, const char*, ERR_reason_error_string, (unsigned long))                       \
  F(crypto, void, ERR_clear_error, ())

struct OpenSsl {
#define ORS_DECLARE(library, result, name, arguments) result(*name) arguments = nullptr;
  ORS_OPENSSL_FUNCTIONS(ORS_DECLARE)
#undef ORS_DECLARE
};

struct OpenSslNames {
  std::string ssl;
  std::string crypto;
};

// Loads the first of `names` that this machine has. Returns null if there is none; *why then names
// the libraries that were tried and the package to install.
std::unique_ptr<const OpenSsl> load_openssl(const std::vector<OpenSslNames>& names,
                                            std::string* why);

// The system's OpenSSL. Loaded once and never unloaded.
const OpenSsl* system_openssl(std::string* why);

}  // namespace ors
