// Mode tls (PROTOCOL.md, section 13): TLS 1.3 over a connected socket, with certificates on both
// sides. Bytes go through memory of ours, so no call of OpenSSL touches a descriptor, raises
// SIGPIPE or waits.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codec/failure.h"
#include "codec/wire.h"
#include "crypto/openssl.h"

namespace ors {

// PEM files: this worker's certificate with its chain, its key, and the CA of the reducers.
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string ca;
};

class TlsStream;

// What the connections of one engine have in common; holds the key until it ends.
class TlsContext {
 public:
  // Null where a file is no good; *why names it.
  static std::shared_ptr<const TlsContext> make(const OpenSsl& api, const TlsFiles& files,
                                                std::string* why);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // For a connection to `host`, a name or an address as it was dialled: the certificate must have
  // it. `peer`: for messages.
  std::unique_ptr<TlsStream> stream(const std::string& host, uint16_t lane,
                                    const std::string& peer) const;

 private:
  TlsContext(const OpenSsl& api, SSL_CTX* context) : api_(api), context_(context) {}

  const OpenSsl& api_;
  SSL_CTX* const context_;
};

// One connection. prove() until it is proven, then send() and receive(), as sendmsg() and readv().
class TlsStream {
 public:
  enum class Proof : uint8_t { kWaits, kProven, kLost, kRefused };

  TlsStream(const OpenSsl& api, SSL* ssl, uint16_t lane, const std::string& peer);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Up to the last byte that is there, or the end of the handshake: the reducer has our
  // certificate, we have its, and it has said our preface. kLost: `errno`, 0 for the end of the
  // stream. kRefused: failure() says what no retry can mend.
  Proof prove(int fd);
  const Failure& failure() const { return failure_; }

  // Plain bytes that were taken, or -1 with errno. What was taken may be unsent(): a send() of
  // nothing goes on with it.
  ssize_t send(int fd, const struct iovec* parts, int n);
  bool unsent() const { return out_at_ < out_end_; }
  // Plain bytes; fewer than there is room for when no more have come, or it has ended(). 0: the end
  // of the stream. -1 with errno; EPROTO: failure().
  ssize_t receive(int fd, const struct iovec* parts, int n);
  bool ended() const { return ended_; }
  // Tells the reducer that nothing follows, as far as the socket takes it now.
  void close(int fd);

 private:
  Proof handshake(int fd);
  ssize_t decrypt(int fd, void* to, size_t size);
  ssize_t fill(int fd);
  bool check_first_bytes();
  void refuse_foreign();
  void encrypted();
  bool flush(int fd);
  void refuse(const std::string& what, ErrorCode code = ErrorCode::kAuthentication);
  void refuse_for_tls();

  const OpenSsl& api_;
  SSL* const ssl_;
  BIO* const in_;  // both ssl_'s
  BIO* const out_bio_;
  std::string preface_;  // ours
  std::string first_;    // of the reducer's bytes, until they are known to be TLS
  std::string answer_;   // the preface that it has said
  bool is_tls_ = false;
  bool established_ = false;
  bool ended_ = false;
  std::vector<uint8_t> out_;  // encrypted, from out_at_ to out_end_; kept for its memory
  size_t out_at_ = 0;
  size_t out_end_ = 0;
  std::string peer_;
  Failure failure_;
};

}  // namespace ors
