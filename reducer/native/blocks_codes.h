/* Codes of one element, for the loops of blocks.inc. Plain C that gcc and clang vectorize.
 *
 * A code of e4m3fn is sign, 4 bits of exponent with bias 7, 3 of mantissa. A code of e3m0 is a sign
 * and a level, which is an exponent: 0 is 0, L is 2^(L-7). `r`: 32 random bits. */
#ifndef RS_BLOCKS_CODES_H
#define RS_BLOCKS_CODES_H

#include <stdint.h>
#include <string.h>

#include "rebiased.h"

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

INLINE float value_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The finalizer of MurmurHash3. */
INLINE uint32_t mixed(uint32_t h) {
  h = (h ^ (h >> 16)) * 0x85EBCA6B;
  h = (h ^ (h >> 13)) * 0xC2B2AE35;
  return h ^ (h >> 16);
}

INLINE uint32_t random_bits(uint64_t seed, uint32_t i) {
  return mixed(mixed((uint32_t)seed + i * 0x9E3779B9) ^ (uint32_t)(seed >> 32));
}

#define MAGNITUDE_BITS 0x7FFFFFFF
/* 2^-6: the smallest normal number of e4m3fn, and level 1 of e3m0. */
#define LEAST_BITS 0x3C800000

/* Masks instead of conditions let gcc vectorize. `difference` is of two numbers below 2^31. */
#define ALL_BITS_IF_NEGATIVE(difference) (-((uint32_t)(difference) >> 31))

/* ---- to a code; |y| is at most the format's limit, up to rounding ---- */

/* The sum leaves the integer in the last bits. */
INLINE uint32_t int8_nearest(float y) { return bits_of(y + 0x1.8p23f); }

INLINE uint32_t int8_stochastic(float y, uint32_t r) {
  const float raised = y + (float)(int32_t)(r >> 8) * 0x1p-24f;
  const int32_t toward_zero = (int32_t)raised;
  const int32_t floor = toward_zero - ((float)toward_zero > raised);
  const int32_t bounded = floor > 127 ? 127 : floor;
  return (uint32_t)(bounded < -127 ? -127 : bounded);
}

/* Adding 2^20 times the power of two below the magnitude, or below the smallest normal number,
 * rounds to 3 bits behind the binary point and leaves them in the last bits. */
INLINE uint32_t e4m3fn_nearest(float y) {
  const uint32_t bits = bits_of(y), magnitude = bits & MAGNITUDE_BITS;
  const int32_t at_least = (int32_t)magnitude > LEAST_BITS ? (int32_t)magnitude : LEAST_BITS;
  const uint32_t power = (uint32_t)at_least & 0x7F800000, unit = power + (20 << 23);
  const uint32_t eighths = bits_of(value_of(magnitude) + value_of(unit)) - unit;
  return (eighths + ((power - LEAST_BITS) >> 20)) | (bits >> 24 & 0x80);
}

/* The bits of a magnitude, or, below 2^-6, those of its sum with 2^-6: in both cases the mantissa
 * is the place between two powers of two, or between 0 and 2^-6. */
INLINE uint32_t place(uint32_t magnitude) {
  const uint32_t below = ALL_BITS_IF_NEGATIVE(magnitude - LEAST_BITS);
  const float sum = value_of(magnitude) + value_of(below & LEAST_BITS);
  return bits_of(sum) - (below & 0x800000);
}

INLINE uint32_t e4m3fn_stochastic(float y, uint32_t r) {
  const uint32_t bits = bits_of(y);
  const int32_t code =
      (int32_t)((place(bits & MAGNITUDE_BITS) + (r >> 12) - (LEAST_BITS - 0x800000)) >> 20);
  return (uint32_t)(code < 0x7E ? code : 0x7E) | (bits >> 24 & 0x80);
}

/* Ties away from zero. 2^-7 and more are nearer to level 1 than to level 0. */
INLINE uint32_t e3m0_nearest(float y) {
  const uint32_t bits = bits_of(y);
  const int32_t magnitude = (int32_t)(bits & MAGNITUDE_BITS);
  const int32_t level = ((magnitude + 0x400000) >> 23) - 120, least = magnitude >= 0x3C000000;
  const int32_t raised = level > least ? level : least;
  return (uint32_t)(raised < 7 ? raised : 7) | (bits >> 28 & 8);
}

INLINE uint32_t e3m0_stochastic(float y, uint32_t r) {
  const uint32_t bits = bits_of(y);
  const int32_t level = (int32_t)((place(bits & MAGNITUDE_BITS) + (r >> 9)) >> 23) - 120;
  return (uint32_t)(level < 7 ? level : 7) | (bits >> 28 & 8);
}

/* ---- from a code, 0 to 255 ---- */

INLINE float int8_decoded(uint32_t code) { return (float)(int8_t)code; }

/* Not for the NaN codes, 0x7F and 0xFF. */
INLINE float e4m3fn_decoded(uint32_t code) {
  return value_of(rebiased(code << 20 & 0x07F00000, 0x3C000000) | (code << 24 & 0x80000000));
}

INLINE float e3m0_decoded(uint32_t code) {
  const int32_t level = (int32_t)(code & 7);
  const uint32_t power = (uint32_t)(level + 120) << 23;
  return value_of((power & ALL_BITS_IF_NEGATIVE(-level)) | (code << 28 & 0x80000000));
}

#endif
