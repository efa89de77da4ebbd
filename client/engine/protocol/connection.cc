#include "protocol/connection.h"

#include <algorithm>
#include <cstdio>

#include "codec/cast.h"
#include "codec/crc.h"

namespace ors {
namespace {

constexpr size_t kBufferSize = kHeaderSize + kMaxControlBytes + kHeaderSize;
constexpr size_t kSlack = 4'096;       // bytes read beyond a payload: next header, small frames
constexpr size_t kBulkBytes = 32'768;  // payloads from this size on must not be copied twice
constexpr size_t kScratch = 65'536;

std::string shown(const uint8_t* bytes, size_t size) {
  std::string text = "\"";
  std::string hex;
  for (size_t i = 0; i < size; ++i) {
    const bool printable = bytes[i] >= 0x20 && bytes[i] < 0x7F;
    text.push_back(printable ? static_cast<char>(bytes[i]) : '.');
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    hex += digits;
  }
  return text + "\" (hex " + hex + ")";
}

}  // namespace

Receiver::Receiver(std::string peer) : peer_(std::move(peer)), buffer_(kBufferSize) {}

Failure Receiver::broken(ErrorCode code, const std::string& what) const {
  Failure failure;
  failure.code = code;
  failure.message = what + " from " + peer_;
  return failure;
}

int Receiver::prepare(struct iovec* out) {
  if (payload_left_ > 0) {
    const bool wanted = target_.bytes != nullptr;
    begin_ = end_ = 0;
    window_ = wanted ? payload_left_ : std::min<size_t>(payload_left_, scratch_.size());
    out[0] = {wanted ? target_.bytes + payload_got_ : scratch_.data(), window_};
    out[1] = {buffer_.data(), kSlack};
    return window_ == payload_left_ ? 2 : 1;
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, have());
    end_ = have();
    begin_ = 0;
  }
  const size_t wish = std::max(needed_, bulk_ ? kSlack : kScratch);
  out[0] = {buffer_.data() + end_, std::min(wish, buffer_.size() - end_)};
  return 1;
}

std::optional<Failure> Receiver::received(size_t size, FrameSink* sink) {
  if (payload_left_ > 0) {
    const auto part = std::min(size, window_);
    take(nullptr, part);
    size -= part;
    if (payload_left_ == 0) {
      if (auto failure = end_payload(sink)) return failure;
    }
  }
  end_ += size;
  for (bool progress = true; progress && payload_left_ == 0;) {
    progress = false;
    if (auto failure = next_frame(sink, &progress)) return failure;
  }
  return std::nullopt;
}

// Processes payload bytes: updates the CRC and copies or widens the bytes to the target. `data` is
// null if they were read directly into the target.
void Receiver::take(const uint8_t* data, size_t size) {
  uint8_t* place = target_.bytes != nullptr ? target_.bytes + payload_got_ : nullptr;
  if (data == nullptr) {
    crc_ = crc32c(place != nullptr ? place : scratch_.data(), size, crc_);
  } else if (place != nullptr) {
    crc_ = copy_crc32c(place, data, size, crc_);
  } else {
    crc_ = crc32c(data, size, crc_);
  }
  payload_got_ += static_cast<uint32_t>(size);
  payload_left_ -= static_cast<uint32_t>(size);
}

std::optional<Failure> Receiver::check_first_bytes() {
  const uint8_t* bytes = buffer_.data() + begin_;
  if (std::memcmp(bytes, "ORSF", 4) == 0) {
    checked_ = true;
    return std::nullopt;
  }
  if (std::memcmp(bytes, "ORSP", 4) != 0) {
    return broken(ErrorCode::kProtocol, "this is not a reducer: the first bytes are " +
                                            shown(bytes, std::min<size_t>(have(), 16)));
  }
  if (have() < kPrefaceSize) return std::nullopt;
  Preface theirs;
  if (const char* wrong = unpack_preface(bytes, &theirs))
    return broken(ErrorCode::kProtocol, wrong);
  return broken(ErrorCode::kVersion, "protocol version mismatch: this client speaks " +
                                         version(Preface()) + ", got " + version(theirs));
}

std::optional<Failure> Receiver::next_frame(FrameSink* sink, bool* progress) {
  if (!checked_ && have() >= 4) {
    if (auto failure = check_first_bytes()) return failure;
    if (!checked_) return std::nullopt;
  }
  needed_ = kHeaderSize - std::min(have(), kHeaderSize);
  if (have() < kHeaderSize) return std::nullopt;
  ErrorCode code;
  if (const char* wrong = unpack_header(buffer_.data() + begin_, &header_, &code)) {
    return broken(code, wrong);
  }
  if (header_.kind == kResult) {
    *progress = true;
    begin_ += kHeaderSize;
    return begin_payload(sink);
  }
  const size_t whole = kHeaderSize + header_.length;
  if (header_.length > kMaxControlBytes) return broken(ErrorCode::kProtocol, "an unexpected chunk");
  if (have() < whole) {
    needed_ = whole - have();
    return std::nullopt;
  }
  const uint8_t* payload = buffer_.data() + begin_ + kHeaderSize;
  if (header_.length > 0 && crc32c(payload, header_.length) != header_.payload_crc) {
    return broken(ErrorCode::kCorrupted, "a control frame with a bad CRC");
  }
  *progress = true;
  begin_ += whole;
  return sink->control(header_, payload);
}

std::optional<Failure> Receiver::begin_payload(FrameSink* sink) {
  target_ = Target();
  if (auto failure = sink->result_begins(header_, &target_)) return failure;
  bulk_ = header_.length >= kBulkBytes;
  if (header_.length == 0) return sink->result_ends(header_);
  payload_left_ = header_.length;
  payload_got_ = 0;
  crc_ = 0;
  if (target_.wide != nullptr) {
    if (scratch_.size() < header_.length) scratch_.resize(header_.length);
    target_.bytes = scratch_.data();
  } else if (target_.bytes == nullptr && scratch_.empty()) {
    scratch_.resize(kScratch);
  }
  const size_t part = std::min<size_t>(have(), payload_left_);
  take(buffer_.data() + begin_, part);
  begin_ += part;
  return payload_left_ == 0 ? end_payload(sink) : std::nullopt;
}

std::optional<Failure> Receiver::end_payload(FrameSink* sink) {
  if (crc_ != header_.payload_crc) {
    return broken(ErrorCode::kCorrupted, "a result with a bad CRC (chunk " +
                                             std::to_string(header_.chunk) + " of round " +
                                             std::to_string(header_.round) + ")");
  }
  const uint8_t* place = target_.bytes;
  size_t size = header_.length;
  if (target_.wide != nullptr) {
    widen(header_.dtype, scratch_.data(), target_.wide, header_.length / sizeof(uint16_t));
    place = reinterpret_cast<const uint8_t*>(target_.wide);
    size *= sizeof(float) / sizeof(uint16_t);
  }
  if (target_.reread) header_.payload_crc = crc32c(place, size);
  return sink->result_ends(header_);
}

void Receiver::discard() {
  target_ = Target();
  if (scratch_.empty()) scratch_.resize(kScratch);
}

Sender::Sender() { pieces_.reserve(kMaxPieces); }

void Sender::add(std::string bytes) {
  frames_ += 1;
  bytes_ += bytes.size();
  pieces_.push_back({nullptr, bytes.size(), nullptr, std::move(bytes)});
  Piece& piece = pieces_.back();
  piece.data = reinterpret_cast<const uint8_t*>(piece.own.data());
}

void Sender::add(const Header& header, BufferRef payload) {
  uint8_t* packed = headers_[frames_++].data();
  pack_header(header, packed);
  bytes_ += kHeaderSize + header.length;
  pieces_.push_back({packed, kHeaderSize, nullptr, {}});
  if (header.length > 0) {
    const uint8_t* data = payload->data;
    pieces_.push_back({data, header.length, std::move(payload), {}});
  }
}

int Sender::prepare(struct iovec* out, int most) const {
  int n = 0;
  for (size_t i = first_; i < pieces_.size() && n < most; ++i, ++n) {
    out[n] = {const_cast<uint8_t*>(pieces_[i].data), pieces_[i].size};
  }
  return n;
}

void Sender::sent(size_t size) {
  while (size > 0) {
    Piece& piece = pieces_[first_];
    const size_t part = std::min(size, piece.size);
    piece.data += part;
    piece.size -= part;
    size -= part;
    if (piece.size > 0) return;
    piece.keep.reset();
    ++first_;
  }
  if (empty()) {
    pieces_.clear();
    first_ = frames_ = bytes_ = 0;
  }
}

}  // namespace ors
