#include "crypto/tls.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace ors {
namespace {

// Constants of OpenSSL's headers.
constexpr int kCtrlReadAhead = 41;    // SSL_CTX_set_read_ahead
constexpr int kCtrlMinVersion = 123;  // SSL_CTX_set_min_proto_version
constexpr int kCtrlServerName = 55;   // SSL_set_tlsext_host_name
constexpr int kCtrlGroups = 92;       // SSL_CTX_set1_groups_list
constexpr long kTls13 = 0x0304;
constexpr int kVerifyPeer = 1;
constexpr int kPem = 1;
constexpr int kErrorWantRead = 2;
constexpr int kErrorZeroReturn = 6;
constexpr long kCertExpired = 10;
constexpr long kCertPurpose = 26;
constexpr long kCertHostMismatch = 62;
constexpr long kCertIpMismatch = 64;

constexpr char kCiphers[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr char kFirstBytes[] = {0x16, 0x15};  // of a handshake record, and of an alert
constexpr size_t kBatch = 64 << 10;           // plain bytes of one send()
constexpr size_t kChunk = 64 << 10;           // encrypted bytes of one recv()

int no_password(char*, int, int, void*) { return -1; }  // never prompt on the terminal

std::string reason(const OpenSsl& api) {
  std::string text;
  while (const unsigned long code = api.ERR_get_error()) {
    const char* name = api.ERR_reason_error_string(code);
    if (name != nullptr) text = name;
  }
  return text.empty() ? "unknown" : text;
}

bool is_address(const std::string& host) {
  in6_addr ignored;
  return ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

std::shared_ptr<const TlsContext> TlsContext::make(const OpenSsl& api, const TlsFiles& files,
                                                   std::string* why) {
  api.ERR_clear_error();
  SSL_CTX* context = api.SSL_CTX_new(api.TLS_client_method());
  if (context == nullptr) {
    *why = "OpenSSL: " + reason(api);
    return nullptr;
  }
  std::shared_ptr<const TlsContext> made(new TlsContext(api, context));
  api.SSL_CTX_ctrl(context, kCtrlMinVersion, kTls13, nullptr);
  api.SSL_CTX_ctrl(context, kCtrlReadAhead, 1, nullptr);
  // Reducers accept no other groups. The ClientHello carries the key share of the first one.
  static char groups[] = "P-256";
  api.SSL_CTX_ctrl(context, kCtrlGroups, 0, groups);
  api.SSL_CTX_set_ciphersuites(context, kCiphers);
  api.SSL_CTX_set_verify(context, kVerifyPeer, nullptr);
  api.SSL_CTX_set_default_passwd_cb(context, &no_password);
  if (api.SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    *why = "tls_ca " + files.ca + ": " + reason(api) + "; expected certificates in PEM";
  } else if (api.SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    *why = "tls_cert " + files.cert + ": " + reason(api) + "; expected a certificate in PEM";
  } else if (api.SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), kPem) != 1) {
    *why = "tls_key " + files.key + ": " + reason(api) + "; expected the key of " + files.cert +
           " in PEM, not encrypted";
  } else {
    return made;
  }
  return nullptr;
}

TlsContext::~TlsContext() { api_.SSL_CTX_free(context_); }

std::unique_ptr<TlsStream> TlsContext::stream(const std::string& host, uint16_t lane,
                                              const std::string& peer) const {
  SSL* ssl = api_.SSL_new(context_);
  if (ssl == nullptr) throw std::bad_alloc();
  auto made = std::make_unique<TlsStream>(api_, ssl, lane, peer);
  X509_VERIFY_PARAM* checks = api_.SSL_get0_param(ssl);
  const std::string name =
      host.substr(0, host.find('%'));  // strip the scope: certificates have none
  bool set;
  if (is_address(name)) {
    set = api_.X509_VERIFY_PARAM_set1_ip_asc(checks, name.c_str()) == 1;
  } else {
    set = api_.X509_VERIFY_PARAM_set1_host(checks, name.c_str(), 0) == 1;
    api_.SSL_ctrl(ssl, kCtrlServerName, 0, const_cast<char*>(name.c_str()));
  }
  if (!set) throw std::bad_alloc();  // else the name would not be verified
  return made;
}

TlsStream::TlsStream(const OpenSsl& api, SSL* ssl, uint16_t lane, const std::string& peer)
    : api_(api),
      ssl_(ssl),
      in_(api.BIO_new(api.BIO_s_mem())),
      out_bio_(api.BIO_new(api.BIO_s_mem())),
      preface_(pack_preface({kPrefaceTls, lane})),
      peer_(peer) {
  if (in_ == nullptr || out_bio_ == nullptr) throw std::bad_alloc();
  api_.SSL_set_bio(ssl_, in_, out_bio_);
  api_.SSL_set_connect_state(ssl_);
  out_.assign(preface_.begin(), preface_.end());
  out_end_ = out_.size();
}

TlsStream::~TlsStream() { api_.SSL_free(ssl_); }

// --- handshake ---

TlsStream::Proof TlsStream::prove(int fd) {
  if (!established_) {
    const Proof step = handshake(fd);
    if (!established_) return step;
  }
  char bytes[kPrefaceSize];
  while (answer_.size() < kPrefaceSize) {
    const ssize_t size = decrypt(fd, bytes, kPrefaceSize - answer_.size());
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Proof::kWaits;
    if (size < 0 && errno == EPROTO) return Proof::kRefused;
    if (size == 0) errno = 0;
    if (size <= 0) return Proof::kLost;
    answer_.append(bytes, static_cast<size_t>(size));
  }
  if (answer_ == preface_) return Proof::kProven;
  refuse("received a different preface than this worker sent: it was changed on the way");
  return Proof::kRefused;
}

TlsStream::Proof TlsStream::handshake(int fd) {
  for (;;) {
    api_.ERR_clear_error();
    const int done = api_.SSL_do_handshake(ssl_);
    const int error = done == 1 ? 0 : api_.SSL_get_error(ssl_, done);
    if (error != 0 && error != kErrorWantRead) refuse_for_tls();
    encrypted();
    const bool flushed = flush(fd);  // sends alerts as well
    if (error != 0 && error != kErrorWantRead) return Proof::kRefused;
    // The send buffer of a new connection is larger than this, so a failed flush is an error.
    if (!flushed) return Proof::kLost;
    if (done == 1) {
      established_ = true;
      return Proof::kWaits;
    }
    const ssize_t size = fill(fd);
    if (size > 0) continue;
    if (size == 0) errno = 0;
    if (size < 0 && errno == EPROTO) return Proof::kRefused;
    return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Proof::kWaits : Proof::kLost;
  }
}

// Checks whether the reducer speaks TLS, before OpenSSL sees a byte. If not, its first bytes tell
// the reason. Returns false while more bytes are needed to decide.
bool TlsStream::check_first_bytes() {
  is_tls_ =
      std::find(std::begin(kFirstBytes), std::end(kFirstBytes), first_[0]) != std::end(kFirstBytes);
  const bool preface = first_.compare(0, 4, "ORSP", 0, std::min<size_t>(first_.size(), 4)) == 0;
  if (!is_tls_ && preface && first_.size() < kPrefaceSize) return false;
  if (!is_tls_) refuse_foreign();
  return true;
}

void TlsStream::refuse_foreign() {
  if (first_.compare(0, 4, "ORSF") == 0) {
    return refuse(
        "answered without TLS: it has no certificate, or cannot accept connections (see its log)");
  }
  Preface theirs;
  const auto* raw = reinterpret_cast<const uint8_t*>(first_.data());
  if (first_.size() < kPrefaceSize || unpack_preface(raw, &theirs) != nullptr) {
    const bool http = first_.compare(0, 4, kHttp) == 0;
    return refuse(http ? kIsHttp : "does not speak TLS: it is not a reducer");
  }
  if (theirs.major != kProtocolMajor) {
    return refuse("speaks protocol " + version(theirs) + ", this client " + version(Preface()) +
                      ": protocol version mismatch; install releases with the same major version",
                  ErrorCode::kVersion);
  }
  const char* has = theirs.flags == kPrefacePsk ? "a key (mode psk) and no" : "no";
  refuse(std::string("has ") + has +
         " certificate, and this worker has one: start it with --tls-cert, --tls-key and --tls-ca, "
         "or this worker without");
}

// Turns OpenSSL's error into a failure. Usually one of the two certificates was refused.
void TlsStream::refuse_for_tls() {
  const std::string why = reason(api_);
  const long verified = api_.SSL_get_verify_result(ssl_);
  if (verified != 0) {
    std::string text = std::string("has a certificate that this worker refuses: ") +
                       api_.X509_verify_cert_error_string(verified);
    if (verified == kCertHostMismatch || verified == kCertIpMismatch) {
      text += "; its subjectAltName must have the name or address that this worker dials";
    } else if (verified == kCertPurpose) {
      text += "; its extendedKeyUsage, if it has one, must have serverAuth";
    } else if (verified != kCertExpired) {
      text += "; it must be signed by the CA in tls_ca (REDUCER_TLS_CA)";
    }
    return refuse(text);
  }
  if (why.find("alert") != std::string::npos) {
    return refuse("refused this worker's certificate or TLS handshake: " + why +
                  " (see the reducer's log)");
  }
  refuse("broke the TLS protocol: " + why);
}

void TlsStream::refuse(const std::string& what, ErrorCode code) {
  ended_ = true;
  failure_ = {code, peer_ + " " + what, "unproven"};
}

// --- receiving ---

// Reads encrypted bytes from the socket. Returns their number, 0 at the end of the stream, or -1
// with errno. EPROTO: the peer does not speak TLS, see failure().
ssize_t TlsStream::fill(int fd) {
  uint8_t bytes[kChunk];
  for (;;) {
    const ssize_t size = ::recv(fd, bytes, sizeof bytes, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return size;
    const auto got = static_cast<size_t>(size);
    if (is_tls_) {
      api_.BIO_write(in_, bytes, static_cast<int>(got));
      return size;
    }
    first_.append(reinterpret_cast<const char*>(bytes), got);
    if (!check_first_bytes()) continue;
    if (!is_tls_) {
      errno = EPROTO;
      return -1;
    }
    api_.BIO_write(in_, first_.data(), static_cast<int>(first_.size()));
    first_.clear();
    return size;
  }
}

ssize_t TlsStream::decrypt(int fd, void* to, size_t size) {
  for (;;) {
    if (!failure_.message.empty()) {
      errno = EPROTO;
      return -1;
    }
    api_.ERR_clear_error();
    const int most = static_cast<int>(std::min<size_t>(size, 1 << 30));
    const int got = api_.SSL_read(ssl_, to, most);
    if (got > 0) return got;
    const int error = api_.SSL_get_error(ssl_, got);
    if (error == kErrorZeroReturn) {
      ended_ = true;
      return 0;
    }
    if (error != kErrorWantRead) {
      refuse_for_tls();
      continue;
    }
    const ssize_t came = fill(fd);
    if (came <= 0) {
      ended_ = came == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return came;
    }
  }
}

ssize_t TlsStream::receive(int fd, const struct iovec* parts, int n) {
  ssize_t all = 0;
  for (int i = 0; i < n; ++i) {
    auto* to = static_cast<uint8_t*>(parts[i].iov_base);
    for (size_t at = 0; at < parts[i].iov_len;) {
      const ssize_t size = decrypt(fd, to + at, parts[i].iov_len - at);
      if (size <= 0) return all > 0 ? all : size;  // the next call returns the error again
      at += static_cast<size_t>(size);
      all += size;
    }
  }
  return all;
}

// --- sending ---

// Appends the bytes that OpenSSL has written to out_.
void TlsStream::encrypted() {
  const size_t size = api_.BIO_ctrl_pending(out_bio_);
  if (size == 0) return;
  if (!unsent()) out_at_ = out_end_ = 0;
  if (out_.size() < out_end_ + size) out_.resize(out_end_ + size);
  api_.BIO_read(out_bio_, out_.data() + out_end_, static_cast<int>(size));
  out_end_ += size;
}

bool TlsStream::flush(int fd) {
  while (unsent()) {
    const ssize_t size =
        ::send(fd, out_.data() + out_at_, out_end_ - out_at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return false;
    out_at_ += static_cast<size_t>(size);
  }
  return true;
}

ssize_t TlsStream::send(int fd, const struct iovec* parts, int n) {
  encrypted();  // OpenSSL's own messages go first
  if (!flush(fd)) return -1;
  size_t taken = 0;
  for (int i = 0; i < n && taken < kBatch; ++i) {
    const size_t part = std::min(parts[i].iov_len, kBatch - taken);
    if (part == 0) continue;
    api_.ERR_clear_error();
    // SSL_write to a memory BIO never writes less.
    if (api_.SSL_write(ssl_, parts[i].iov_base, static_cast<int>(part)) != static_cast<int>(part)) {
      refuse_for_tls();
      errno = EPROTO;
      return -1;
    }
    taken += part;
  }
  encrypted();
  (void)flush(fd);  // the rest stays unsent()
  return static_cast<ssize_t>(taken);
}

void TlsStream::close(int fd) {
  api_.ERR_clear_error();
  (void)api_.SSL_shutdown(ssl_);
  encrypted();
  (void)flush(fd);
}

}  // namespace ors
