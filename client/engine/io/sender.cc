#include "io/sender.h"

#include <algorithm>
#include <utility>

namespace ors {

Sender::Sender() { pieces_.reserve(kMaxPieces); }

void Sender::add(std::string bytes) {
  pieces_.push_back({nullptr, bytes.size(), nullptr, std::move(bytes)});
  Piece& piece = pieces_.back();
  piece.data = reinterpret_cast<const uint8_t*>(piece.own.data());
}

void Sender::add(OutgoingBatch* batch) {
  auto packed = headers_.begin();
  for (Outgoing& frame : batch->frames()) {
    if (!frame.control.empty()) {
      add(std::move(frame.control));
      continue;
    }
    pack_header(frame.header, packed->data());
    pieces_.push_back({packed++->data(), kHeaderSize, nullptr, {}});
    if (frame.header.length == 0) continue;
    const uint8_t* data = frame.payload->data;
    pieces_.push_back({data, frame.header.length, std::move(frame.payload), {}});
  }
  batch->clear();
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
    first_ = 0;
  }
}

}  // namespace ors
