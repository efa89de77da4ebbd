// The worker's side of the psk handshake (PROTOCOL.md, section 12), without its socket: opening()
// goes out, the answer comes in, proof() goes out, and only then frames.
//
// Law: a lane that has not proven the key is believed nothing: its bytes are of fixed size, no text
// of it is shown, and nothing is parsed but the two numbers of a preface.
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

// The key of one job, from the key of a key file.
Secret job_key(std::string_view master, std::string_view job);

class Handshake {
 public:
  // `nonce`: random bytes for this connection alone. `peer`: for messages.
  Handshake(const Secret& key, std::string_view job, uint16_t lane, std::string_view nonce,
            std::string peer);

  const std::string& opening() const { return opening_; }  // preface and challenge

  // The most bytes that may be read now: never one of the first frame.
  size_t wanted() const { return kAnswerSize - answer_.size(); }
  // Bytes of the lane. A failure is final.
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
