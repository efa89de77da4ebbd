#include "io/receiver.h"

#include <algorithm>
#include <string_view>

#include "codec/cast.h"
#include "codec/crc.h"
#include "codec/hex.h"

namespace ors {
namespace {

constexpr size_t kBufferSize = kHeaderSize + kMaxControlBytes + kHeaderSize;
constexpr size_t kSlack = 4'096;       // bytes read beyond a payload: next header, small frames
constexpr size_t kBulkBytes = 32'768;  // payloads from this size on must not be copied twice
constexpr size_t kScratch = 65'536;

std::string shown(const uint8_t* bytes, size_t size) {
  const std::string_view raw(reinterpret_cast<const char*>(bytes), size);
  std::string text;
  for (const char c : raw) text.push_back(c >= 0x20 && c < 0x7F ? c : '.');
  return "\"" + text + "\" (hex " + hex(raw) + ")";
}

}  // namespace

Receiver::Receiver(std::string peer) : peer_(std::move(peer)), buffer_(kBufferSize) {
  frames_.reserve(kBatch);
  begun_.reserve(kBatch);
}

Failure Receiver::broken(ErrorCode code, const std::string& what) const {
  return {code, what + " from " + peer_};
}

int Receiver::prepare(struct iovec* out) {
  if (payload_left_ > 0) {
    const bool wanted = target_.bytes != nullptr;
    begin_ = end_ = 0;
    if (scratch_.empty() && !wanted) scratch_.resize(kScratch);
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
  std::optional<Failure> failure;
  frames_.clear();  // not empty if memory ran out in the middle of a batch
  if (payload_left_ > 0) {
    const auto part = std::min(size, window_);
    take(nullptr, part);
    size -= part;
    if (payload_left_ == 0) failure = end_payload();
  }
  end_ += size;
  for (;;) {
    if (!failure) failure = gather();
    if (frames_.empty()) return failure;
    // A failure from here concerns an earlier frame than the failure that it replaces.
    if (auto earlier = sink->take(&frames_)) failure = std::move(earlier);
    if (auto earlier = place()) failure = std::move(earlier);
  }
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
    const std::string_view first(reinterpret_cast<const char*>(bytes), 4);
    return broken(ErrorCode::kProtocol, first == kHttp
                                            ? std::string("this ") + kIsHttp
                                            : "this is not a reducer: the first bytes are " +
                                                  shown(bytes, std::min<size_t>(have(), 16)));
  }
  if (have() < kPrefaceSize) return std::nullopt;
  Preface theirs;
  if (const char* wrong = unpack_preface(bytes, &theirs)) {
    return broken(ErrorCode::kProtocol,
                  std::string(wrong) + " (" + shown(bytes, kPrefaceSize) + ")");
  }
  return broken(ErrorCode::kVersion, "protocol version mismatch: this client speaks " +
                                         version(Preface()) + ", got " + version(theirs) +
                                         ": install releases with the same major version");
}

// Adds the frames of the buffer to the batch. A control frame that follows a result waits until the
// result has ended.
std::optional<Failure> Receiver::gather() {
  bool begun = false;
  while (payload_left_ == 0 && frames_.size() < kBatch) {
    if (!checked_ && have() >= 4) {
      if (auto failure = check_first_bytes()) return failure;
      if (!checked_) return std::nullopt;
    }
    needed_ = kHeaderSize - std::min(have(), kHeaderSize);
    if (have() < kHeaderSize) return std::nullopt;
    Incoming frame;
    ErrorCode code;
    const uint8_t* bytes = buffer_.data() + begin_;
    if (const char* wrong = unpack_header(bytes, &frame.header, &code)) {
      return broken(code, std::string(wrong) + " (payload length " +
                              std::to_string(frame.header.length) + ", first bytes " +
                              shown(bytes, 16) + ")");
    }
    frame.payload = bytes + kHeaderSize;
    frame.received = std::min<size_t>(have() - kHeaderSize, frame.header.length);
    const bool whole = frame.received == frame.header.length;
    if (frame.header.kind == kResult) {
      frame.event = Incoming::Event::kResultBegins;
      begun = true;
    } else {
      if (begun) return std::nullopt;
      if (auto failure = check_control(frame)) return failure;
      if (!whole) {
        needed_ = frame.header.length - frame.received;
        return std::nullopt;
      }
    }
    begin_ += kHeaderSize + frame.received;
    frames_.push_back(frame);
    if (!whole) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Failure> Receiver::check_control(const Incoming& frame) const {
  const Header& header = frame.header;
  if (header.length > kMaxControlBytes) return broken(ErrorCode::kProtocol, "an unexpected chunk");
  if (header.length == 0 || frame.received < header.length) return std::nullopt;
  if (crc32c(frame.payload, header.length) == header.payload_crc) return std::nullopt;
  return broken(ErrorCode::kCorrupted, "a control frame with a bad CRC");
}

// Places what the buffer has of the payloads that begin in the batch, which the sink has taken. The
// next batch starts with those that are complete.
std::optional<Failure> Receiver::place() {
  begun_.swap(frames_);
  frames_.clear();
  for (const Incoming& frame : begun_) {
    if (frame.event != Incoming::Event::kResultBegins) continue;
    begin_payload(frame);
    if (payload_left_ > 0) break;  // the last one
    if (auto failure = end_payload()) return failure;
  }
  return std::nullopt;
}

void Receiver::begin_payload(const Incoming& frame) {
  header_ = frame.header;
  target_ = frame.target;
  bulk_ = header_.length >= kBulkBytes;
  payload_left_ = header_.length;
  payload_got_ = 0;
  crc_ = 0;
  if (target_.wide != nullptr) {
    if (scratch_.size() < header_.length) scratch_.resize(header_.length);
    target_.bytes = scratch_.data();
  }
  take(frame.payload, frame.received);
}

// Checks the payload and adds the end of the result to the batch.
std::optional<Failure> Receiver::end_payload() {
  if (header_.length > 0 && crc_ != header_.payload_crc) {
    return broken(ErrorCode::kCorrupted, "a result with a bad CRC (chunk " +
                                             std::to_string(header_.chunk) + " of round " +
                                             std::to_string(header_.round) + ")");
  }
  const uint8_t* place = target_.bytes;
  size_t size = header_.length;
  if (target_.kept != nullptr) std::memcpy(target_.kept->data, place, size);
  if (target_.wide != nullptr) {
    widen(header_.dtype, scratch_.data(), target_.wide, target_.elements);
    place = reinterpret_cast<const uint8_t*>(target_.wide);
    size = target_.elements * sizeof(float);
  }
  if (target_.reread) header_.payload_crc = crc32c(place, size);
  target_.kept.reset();
  frames_.push_back({Incoming::Event::kResultEnds, header_, nullptr, 0, {}});
  return std::nullopt;
}

void Receiver::discard() noexcept {
  target_ = Target();
  for (Incoming& frame : frames_) frame.target = Target();
}

}  // namespace ors
