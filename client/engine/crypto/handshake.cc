#include "crypto/handshake.h"

namespace ors {
namespace {

constexpr char kSaltBegin[] = "open-reduction-server psk ";
constexpr std::string_view kLaneLabel("open-reduction-server lane\0", 27);
constexpr std::string_view kWorkerLabel("open-reduction-server worker\0", 29);
constexpr size_t kMagicSize = 4;

// Offsets in the challenge, the answer and the proof.
constexpr size_t kAtJobSize = 4;
constexpr size_t kAtJob = 8;
constexpr size_t kAtWorkerNonce = kAtJob + kMaxJobBytes;
constexpr size_t kChallengeSize = kAtWorkerNonce + kNonceSize;
constexpr size_t kAtLane = 4;
constexpr size_t kAtReserved = 6;
constexpr size_t kAtLaneMac = 56;
constexpr size_t kAtWorkerMac = 8;

std::string mac(const Secret& key, std::string_view label, const std::string& transcript) {
  return std::string(view(hmac_sha256(key.bytes(), std::string(label) + transcript)));
}

const uint8_t* raw(const std::string& bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

}  // namespace

Secret job_key(std::string_view master, std::string_view job) {
  const std::string salt = kSaltBegin + std::to_string(kProtocolMajor);
  const Secret extracted(hkdf_extract(salt, master));
  return Secret(hkdf_expand(extracted.bytes(), job));
}

Handshake::Handshake(const Secret& key, std::string_view job, uint16_t lane, std::string_view nonce,
                     std::string peer)
    : key_(key), lane_(lane), peer_(std::move(peer)), opening_(pack_preface({kPrefacePsk, lane})) {
  opening_.resize(kPrefaceSize + kChallengeSize);
  char* challenge = opening_.data() + kPrefaceSize;
  std::memcpy(challenge, "ORSC", kMagicSize);
  challenge[kAtJobSize] = static_cast<char>(job.size());
  std::memcpy(challenge + kAtJob, job.data(), job.size());
  std::memcpy(challenge + kAtWorkerNonce, nonce.data(), kNonceSize);
}

std::optional<Failure> Handshake::received(std::string_view bytes) {
  answer_.append(bytes.substr(0, wanted()));
  if (answer_.size() < kMagicSize) return std::nullopt;
  const std::string_view magic = std::string_view(answer_).substr(0, kMagicSize);
  if (magic == "ORSA") return wanted() == 0 ? check_answer() : std::nullopt;
  if (magic == "ORSF") {
    return unproven(
        "answered with a frame and no proof of the key: it has no key (start it with --key-file), "
        "or cannot accept connections (see its log)");
  }
  if (magic == kHttp) return unproven(kIsHttp);
  if (magic != "ORSP") return unproven("sent no proof of the key: it is not a reducer");
  if (answer_.size() < kPrefaceSize) return std::nullopt;
  Preface theirs;
  const bool readable = unpack_preface(raw(answer_), &theirs) == nullptr;
  if (readable && theirs.major == kProtocolMajor && theirs.flags == kPrefaceTls) {
    return unproven(
        "wants TLS and a certificate (mode tls), and this worker has a key: give it tls_cert, "
        "tls_key and tls_ca instead (REDUCER_TLS_CERT, _KEY and _CA)");
  }
  if (!readable || theirs.major == kProtocolMajor) {
    return unproven(
        "has no key, and this worker has one: start it with --key-file, or this worker without");
  }
  return Failure(ErrorCode::kVersion,
                 "protocol version mismatch: this client speaks " + version(Preface()) + ", got " +
                     version(theirs) + " from " + peer_ +
                     ": install releases with the same major version on both sides",
                 "unproven");
}

std::optional<Failure> Handshake::check_answer() {
  const std::string_view answer(answer_);
  const std::string expected =
      mac(key_, kLaneLabel, opening_ + std::string(answer.substr(0, kAtLaneMac)));
  const bool proven = equal_in_constant_time(answer.substr(kAtLaneMac), expected);
  if (!proven) {
    return unproven(
        "could not prove that it has our key: its key file is another one, or it is no reducer of "
        "ours (compare sha256sum of both files; the key of another job never fits)");
  }
  if (load<uint16_t>(raw(answer_) + kAtLane) != lane_ ||
      load<uint16_t>(raw(answer_) + kAtReserved) != 0) {
    return unproven("answered as a different lane than the one that was dialled");
  }
  proof_.assign(kAtWorkerMac, '\0');
  std::memcpy(proof_.data(), "ORSW", kMagicSize);
  proof_ += mac(key_, kWorkerLabel, opening_ + answer_ + proof_);
  key_.clear();
  return std::nullopt;
}

Failure Handshake::unproven(const std::string& what) const {
  return {ErrorCode::kAuthentication, peer_ + " " + what, "unproven"};
}

}  // namespace ors
