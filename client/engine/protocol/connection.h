// The two directions of a connection, without its socket: a Receiver parses received bytes into
// frames, a Sender collects frames into iovecs.
//
// Law: result payloads are read directly into the caller's target; only bytes that came in one read
// with the header, and payloads to be widened, are copied. A peer can make a Receiver allocate at
// most one control frame and one chunk.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/wire.h"
#include "protocol/operation.h"
#include "protocol/pool.h"

namespace ors {

// Where the payload of a result goes.
struct Target {
  uint8_t* bytes = nullptr;  // destination of the bytes of the wire
  float* wide = nullptr;     // destination if widened to float32; both null: drop the payload
  bool reread = false;       // pass result_ends() the CRC of the target memory, read again
};

// Handles the received frames. A returned failure ends the connection.
class FrameSink {
 public:
  virtual std::optional<Failure> control(const Header& header, const uint8_t* payload) = 0;
  virtual std::optional<Failure> result_begins(const Header& header, Target* target) = 0;
  virtual std::optional<Failure> result_ends(const Header& header) = 0;

 protected:
  ~FrameSink() = default;
};

class Receiver {
 public:
  explicit Receiver(std::string peer);

  // Sets up one or two buffers for the next read and returns their number.
  int prepare(struct iovec* out);

  // Handles `size` bytes that were read into the buffers of prepare(). A failure is final.
  std::optional<Failure> received(size_t size, FrameSink* sink);

  // Drops the rest of the payload that is arriving, because its target is no longer valid.
  void discard();

 private:
  size_t have() const { return end_ - begin_; }
  std::optional<Failure> check_first_bytes();
  std::optional<Failure> next_frame(FrameSink* sink, bool* progress);
  std::optional<Failure> begin_payload(FrameSink* sink);
  std::optional<Failure> end_payload(FrameSink* sink);
  void take(const uint8_t* data, size_t size);
  Failure broken(ErrorCode code, const std::string& what) const;

  std::string peer_;
  bool checked_ = false;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t needed_ = kHeaderSize;  // bytes until the current frame is complete
  bool bulk_ = false;            // the last payload was large: read little beyond a header

  Header header_;
  Target target_;
  uint32_t payload_left_ = 0;
  uint32_t payload_got_ = 0;
  uint32_t crc_ = 0;
  size_t window_ = 0;
  std::vector<uint8_t> scratch_;  // for payloads to widen or to drop
};

class Sender {
 public:
  static constexpr size_t kMaxFrames = 32;
  static constexpr size_t kMaxBytes = 64 << 10;  // of one batch; its last frame may exceed this
  static constexpr size_t kMaxPieces = 2 * kMaxFrames;

  Sender();

  bool empty() const { return first_ == pieces_.size(); }
  bool room() const { return frames_ < kMaxFrames && bytes_ < kMaxBytes; }
  void add(std::string bytes);
  void add(const Header& header, BufferRef payload);

  int prepare(struct iovec* out, int most) const;
  void sent(size_t size);

 private:
  struct Piece {
    const uint8_t* data;
    size_t size;
    BufferRef keep;
    std::string own;
  };

  std::vector<Piece> pieces_;  // must not reallocate: `data` may point into `own`
  std::array<std::array<uint8_t, kHeaderSize>, kMaxFrames> headers_;
  size_t first_ = 0;
  size_t frames_ = 0;
  size_t bytes_ = 0;
};

}  // namespace ors
