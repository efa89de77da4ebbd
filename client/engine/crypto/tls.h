// Mode tls (PROTOCOL.md, section 13): TLS 1.3 over a connected socket, with certificates on both
// sides. OpenSSL reads and writes memory buffers only, so it never uses a descriptor, raises
// SIGPIPE or blocks.
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

// Shared by all connections of one engine. Holds the private key until it is destroyed.
class TlsContext {
 public:
  // Returns null if a file cannot be used; *why names the file and the reason.
  static std::shared_ptr<const TlsContext> make(const OpenSsl& api, const TlsFiles& files,
                                                std::string* why);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Creates the stream of a connection. The reducer's certificate must contain `host`, the name or
  // address that was dialled. `peer` is the name for messages.
  std::unique_ptr<TlsStream> stream(const std::string& host, uint16_t lane,
                                    const std::string& peer) const;

 private:
  TlsContext(const OpenSsl& api, SSL_CTX* context) : api_(api), context_(context) {}

  const OpenSsl& api_;
  SSL_CTX* const context_;
};

// One connection. Call prove() until it returns kProven; then use send() and receive() like
// sendmsg() and readv().
class TlsStream {
 public:
  enum class Proof : uint8_t { kWaits, kProven, kLost, kRefused };

  TlsStream(const OpenSsl& api, SSL* ssl, uint16_t lane, const std::string& peer);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Continues the handshake as far as bytes have arrived. kProven: both certificates were verified
  // and the reducer has repeated this worker's preface. kLost: the connection failed; `errno`, or 0
  // at the end of the stream. kRefused: see failure(); a retry cannot help.
  Proof prove(int fd);
  const Failure& failure() const { return failure_; }

  // Returns the number of plain bytes that were accepted, or -1 with errno. Accepted bytes may
  // still be unsent(); a send() of no bytes continues to send these.
  ssize_t send(int fd, const struct iovec* parts, int n);
  bool unsent() const { return out_at_ < out_end_; }
  // Returns the number of plain bytes received; fewer than requested if no more have arrived or the
  // stream has ended(). Returns 0 at the end of the stream, -1 with errno on errors. EPROTO: see
  // failure().
  ssize_t receive(int fd, const struct iovec* parts, int n);
  bool ended() const { return ended_; }
  // Sends close_notify, if the socket accepts it without blocking.
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
  BIO* const in_;  // owned by ssl_, like out_bio_
  BIO* const out_bio_;
  std::string preface_;  // this worker's
  std::string first_;    // the reducer's first bytes, until they are known to be TLS
  std::string answer_;   // the preface as the reducer repeats it
  bool is_tls_ = false;
  bool established_ = false;
  bool ended_ = false;
  std::vector<uint8_t> out_;  // encrypted bytes to send: [out_at_, out_end_)
  size_t out_at_ = 0;
  size_t out_end_ = 0;
  std::string peer_;
  Failure failure_;
};

}  // namespace ors
