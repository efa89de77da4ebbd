// The two directions of one connection, without its socket: bytes in become frames, frames to send
// become vectors of bytes.
//
// Law: payloads are read straight to where they belong. A peer can make a Receiver allocate at
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
  uint8_t* bytes = nullptr;  // as it is on the wire
  float* wide = nullptr;     // or widened to float32; neither: nobody wants it
  bool reread = false;       // result_ends() gets the CRC of the bytes as they lie there
};

// Who is told of the frames. Every failure ends the connection.
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

  // Where the next bytes are to be read: fills one or two entries and returns how many.
  int prepare(struct iovec* out);

  // `size` bytes were read there. A failure is final.
  std::optional<Failure> received(size_t size, FrameSink* sink);

  // The memory of the payload that is arriving is no longer ours: throw the rest away.
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
  size_t needed_ = kHeaderSize;  // bytes of the frame that is not whole yet
  bool bulk_ = false;            // the last payload was large: read little beyond a header

  Header header_;
  Target target_;
  uint32_t payload_left_ = 0;
  uint32_t payload_got_ = 0;
  uint32_t crc_ = 0;
  size_t window_ = 0;
  std::vector<uint8_t> scratch_;  // wide payloads before they are widened, and unwanted ones
};

class Sender {
 public:
  static constexpr size_t kMaxFrames = 32;
  static constexpr size_t kMaxBytes = 64 << 10;  // of one batch, but for its last frame
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

  std::vector<Piece> pieces_;  // never grows beyond what is reserved: `data` may point into `own`
  std::array<std::array<uint8_t, kHeaderSize>, kMaxFrames> headers_;
  size_t first_ = 0;
  size_t frames_ = 0;
  size_t bytes_ = 0;
};

}  // namespace ors
