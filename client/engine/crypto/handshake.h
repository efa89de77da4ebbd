// The worker's side of the psk handshake (PROTOCOL.md, section 12), without its socket. The worker
// sends opening(), receives the answer and sends proof(). Frames follow only then.
//
// Law: nothing from a lane is trusted until the lane has proven the key. The answer has a fixed
// size, none of its text is shown, and only the version and flags of a preface are parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "codec/failure.h"
#include "codec/wire.h"
#include "crypto/hmac.h"

namespace ors {

constexpr size_t kNonceSize = 32;
constexpr size_t kMinMasterBytes = 16;
constexpr size_t kMaxMasterBytes = 1'024;

// Derives the key of one job from the contents of a key file.
Secret job_key(std::string_view master, std::string_view job);

class Handshake {
 public:
  // `nonce` must be fresh random bytes for each connection. `peer` is the name for messages.
  Handshake(const Secret& key, std::string_view job, uint16_t lane, std::string_view nonce,
            std::string peer);

  const std::string& opening() const { return opening_; }  // preface and challenge

  // The number of bytes to read at most, so that no byte of the first frame is read.
  size_t wanted() const { return kAnswerSize - answer_.size(); }
  // Handles bytes from the lane. A failure is final.
  std::optional<Failure> received(std::string_view bytes);
  bool proven() const { return !proof_.empty(); }
  const std::string& proof() const { return proof_; }

 private:
  static constexpr size_t kAnswerSize = 88;

  std::optional<Failure> check_answer();
  Failure unproven(const std::string& what) const;

  Secret key_;
  uint16_t lane_;
  std::string peer_;
  std::string opening_;
  std::string answer_;
  std::string proof_;
};

}  // namespace ors
