// Frames as values between a loop and State: what a loop has received, and what it is to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codec/wire.h"
#include "protocol/pool.h"

namespace ors {

// Where the payload of a result goes.
struct Target {
  uint8_t* bytes = nullptr;  // destination of the bytes of the wire
  float* wide = nullptr;     // destination if widened to float32; both null: drop the payload
  uint64_t elements = 0;     // of `wide`
  bool reread = false;       // the end of the result brings a CRC made by reading the target again
  BufferRef kept;            // gets a copy of the bytes of the wire
};

// A received frame. A result is two events: at its begin, State sets the target; at its end, the
// whole payload is in the target.
struct Incoming {
  enum class Event : uint8_t { kControl, kResultBegins, kResultEnds };

  Event event = Event::kControl;
  Header header;
  const uint8_t* payload = nullptr;  // as received so far, `received` bytes; null at the end
  size_t received = 0;
  Target target;
};
using IncomingBatch = std::vector<Incoming>;

struct Outgoing {
  std::string control;  // a whole control frame; empty: `header` and `payload`
  Header header;
  BufferRef payload;
};

// The next frames for one lane.
class OutgoingBatch {
 public:
  static constexpr size_t kMaxFrames = 32;
  static constexpr size_t kMaxBytes = 64 << 10;  // the last frame may exceed this

  OutgoingBatch() { frames_.reserve(kMaxFrames); }

  bool empty() const { return frames_.empty(); }
  bool room() const { return frames_.size() < kMaxFrames && bytes_ < kMaxBytes; }
  void add(std::string control) {
    bytes_ += control.size();
    frames_.push_back({std::move(control), {}, nullptr});
  }
  void add(const Header& header, BufferRef payload) {
    bytes_ += kHeaderSize + header.length;
    frames_.push_back({{}, header, std::move(payload)});
  }
  std::vector<Outgoing>& frames() { return frames_; }
  void clear() {
    frames_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<Outgoing> frames_;
  size_t bytes_ = 0;
};

}  // namespace ors
