// Collects the frames for one connection into iovecs, and remembers how far they are sent.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/frames.h"

namespace ors {

class Sender {
 public:
  static constexpr size_t kMaxPieces = 2 * OutgoingBatch::kMaxFrames;

  Sender();

  bool empty() const { return first_ == pieces_.size(); }
  void add(std::string bytes);
  void add(OutgoingBatch* batch);  // requires an empty Sender; empties the batch

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
  std::array<std::array<uint8_t, kHeaderSize>, OutgoingBatch::kMaxFrames> headers_;
  size_t first_ = 0;
};

}  // namespace ors
