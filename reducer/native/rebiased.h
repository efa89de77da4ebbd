/* Floats with fewer bits as float32: for the loops and the blocks. */
#ifndef RS_REBIASED_H
#define RS_REBIASED_H

#include <stdint.h>
#include <string.h>

/* The float32 bits of a finite number of a shorter float. `bits` has exponent and mantissa where
 * float32 has them; `rebias` is the difference of the biases of the exponents.
 *
 * A denormal of the shorter float is first read with a hidden bit that it does not have. The value
 * is then less than the smallest normal number, and twice the value minus the smallest normal
 * number is the right value, exactly. No operand is a denormal of float32: an operation on a
 * denormal takes a CPU about 150 cycles. */
static inline uint32_t rebiased(uint32_t bits, uint32_t rebias) {
  const uint32_t wide = bits + rebias, least = rebias + 0x800000;
  uint32_t result;
  float value, normal;
  memcpy(&value, &wide, sizeof value);
  memcpy(&normal, &least, sizeof normal);
  const float below = value - normal;
  value += below < 0.0f ? below : 0.0f;
  memcpy(&result, &value, sizeof result);
  return result;
}

#endif
