// Parses the bytes of one connection into frames, without its socket.
//
// Law: result payloads are read directly into the caller's target. Two things are copied: bytes
// that came in one read with the header, and payloads to be widened. A peer can make a Receiver
// allocate at most one control frame, one chunk and one batch.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/failure.h"
#include "protocol/frames.h"

namespace ors {

// Brings received frames to State, which sets the targets of the results that begin. Returns the
// failure of a frame, which ends the connection; that frame and all after it are removed.
class FrameSink {
 public:
  virtual std::optional<Failure> take(IncomingBatch* frames) = 0;

 protected:
  ~FrameSink() = default;
};

class Receiver {
 public:
  explicit Receiver(std::string peer);

  // Sets up one or two buffers for the next read and returns their number.
  int prepare(struct iovec* out);

  // Handles `size` bytes that were read into the buffers of prepare(). A failure is final; the sink
  // has taken all frames before it.
  //
  // The sink takes frames in batches and in order, with one exception: the results of a batch begin
  // before the first of them ends. So a read that brings the end of a payload and the beginning of
  // the next is one batch, and a read of many small results is two. Payloads are checked and placed
  // between batches.
  std::optional<Failure> received(size_t size, FrameSink* sink);

  // Drops the rest of the payload that is arriving, because its target is no longer valid.
  void discard() noexcept;

 private:
  static constexpr size_t kBatch = 32;  // frames; bounds the time that the sink needs for a batch

  size_t have() const { return end_ - begin_; }
  std::optional<Failure> check_first_bytes();
  std::optional<Failure> gather();
  std::optional<Failure> check_control(const Incoming& frame) const;
  std::optional<Failure> place();
  void begin_payload(const Incoming& frame);
  std::optional<Failure> end_payload();
  void take(const uint8_t* data, size_t size);
  Failure broken(ErrorCode code, const std::string& what) const;

  std::string peer_;
  bool checked_ = false;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t needed_ = kHeaderSize;  // bytes until the current frame is complete
  bool bulk_ = false;            // the last payload was large: read little beyond a header
  IncomingBatch frames_;         // the next batch
  IncomingBatch begun_;          // scratch of place()

  Header header_;
  Target target_;
  uint32_t payload_left_ = 0;
  uint32_t payload_got_ = 0;
  uint32_t crc_ = 0;
  size_t window_ = 0;
  std::vector<uint8_t> scratch_;  // for payloads to widen or to drop
};

}  // namespace ors
