// Bytes of elements on the wire (PROTOCOL.md, section 5).
#pragma once

#include <cstdint>

#include "codec/wire.h"
#include "native/blocks.h"

namespace ors {

// How elements lie in a payload: `unit` elements in unit_bytes(), again and again. A unit is one
// element, or a block. The rest at the end has `head` bytes more than its `bits`.
struct Layout {
  uint32_t unit = 1;
  uint32_t head = 0;
  uint32_t bits = 0;  // of an element; 0: an unknown dtype

  constexpr bool known() const { return bits > 0; }
  constexpr uint64_t unit_bytes() const { return head + uint64_t{unit} * bits / 8; }
  // Bytes of `elements` elements that begin with a unit.
  constexpr uint64_t bytes(uint64_t elements) const {
    if (unit == 1) return elements * unit_bytes();
    const uint64_t rest = elements % unit;
    const uint64_t size = elements / unit * unit_bytes();
    return rest == 0 ? size : size + head + (rest * bits + 7) / 8;
  }
};

constexpr uint32_t kBlockElements = RS_BLOCK_ELEMENTS;
constexpr uint32_t kScaleBytes = 4;  // float32, in front of the codes of a block

// As in native/blocks.h.
constexpr int block_format(uint8_t dtype) { return (dtype - kInt8Blocks) % 3; }

constexpr Layout contribution_layout(uint8_t dtype) {
  if (!is_blocks(dtype)) return {1, 0, 8 * item_size(dtype)};
  return {kBlockElements, kScaleBytes, block_format(dtype) == RS_BLOCKS_E3M0 ? 4u : 8u};
}

constexpr Layout result_layout(uint8_t dtype) {
  const bool narrows = is_blocks(dtype) && !has_block_results(dtype);
  return narrows ? contribution_layout(kBFloat16) : contribution_layout(dtype);
}

}  // namespace ors
