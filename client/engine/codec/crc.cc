#include "codec/crc.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace ors {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected Castagnoli
using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t);

constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    }
  }
  return tables;
}

constexpr auto kTables = make_tables();

uint32_t update_table(uint32_t crc, const uint8_t* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= kTables[7 - t][(word >> (8 * t)) & 0xFF];
  }
  for (; size > 0; --size, ++data) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xFF];
  return crc;
}

#if defined(__x86_64__) || defined(__aarch64__)

// The crc32 instruction has a latency of 3 cycles and a throughput of 1 per cycle. Three
// independent streams of kStream bytes therefore run at once. Their CRCs are joined by shifting a
// CRC over kStream zero bytes, with one table look-up per byte of the CRC.
constexpr size_t kStream = 1024;

constexpr uint32_t times_matrix(const std::array<uint32_t, 32>& matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (size_t i = 0; vector != 0; vector >>= 1, ++i) {
    if (vector & 1) sum ^= matrix[i];
  }
  return sum;
}

constexpr std::array<std::array<uint32_t, 256>, 4> make_shift(size_t zero_bytes) {
  std::array<uint32_t, 32> matrix{};  // over one zero bit
  matrix[0] = kPolynomial;
  for (size_t i = 1; i < 32; ++i) matrix[i] = 1u << (i - 1);
  for (size_t bits = 1; bits < zero_bytes * 8; bits *= 2) {  // zero_bytes is a power of two
    std::array<uint32_t, 32> square{};
    for (size_t i = 0; i < 32; ++i) square[i] = times_matrix(matrix, matrix[i]);
    matrix = square;
  }
  std::array<std::array<uint32_t, 256>, 4> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t t = 0; t < 4; ++t) tables[t][byte] = times_matrix(matrix, byte << (8 * t));
  }
  return tables;
}

constexpr auto kShift = make_shift(kStream);
static_assert((kStream & (kStream - 1)) == 0);

inline uint32_t shift(uint32_t crc) {
  return kShift[0][crc & 0xFF] ^ kShift[1][(crc >> 8) & 0xFF] ^ kShift[2][(crc >> 16) & 0xFF] ^
         kShift[3][crc >> 24];
}

#if defined(__x86_64__)
#define ORS_CRC_TARGET __attribute__((target("sse4.2")))
#define ORS_CRC_U64(crc, word) static_cast<uint32_t>(_mm_crc32_u64(crc, word))
#define ORS_CRC_U8(crc, byte) _mm_crc32_u8(crc, byte)
#else
#define ORS_CRC_TARGET __attribute__((target("+crc")))
#define ORS_CRC_U64(crc, word) __crc32cd(crc, word)
#define ORS_CRC_U8(crc, byte) __crc32cb(crc, byte)
#endif

ORS_CRC_TARGET uint32_t update_hardware(uint32_t crc, const uint8_t* data, size_t size) {
  uint64_t word;
  for (; size >= 3 * kStream; size -= 3 * kStream, data += 3 * kStream) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      std::memcpy(&word, data + i, 8);
      crc = ORS_CRC_U64(crc, word);
      std::memcpy(&word, data + kStream + i, 8);
      second = ORS_CRC_U64(second, word);
      std::memcpy(&word, data + 2 * kStream + i, 8);
      third = ORS_CRC_U64(third, word);
    }
    crc = shift(shift(crc) ^ second) ^ third;
  }
  for (; size >= 8; size -= 8, data += 8) {
    std::memcpy(&word, data, 8);
    crc = ORS_CRC_U64(crc, word);
  }
  for (; size > 0; --size, ++data) crc = ORS_CRC_U8(crc, *data);
  return crc;
}
#endif

Update choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) return update_hardware;
#elif defined(__aarch64__)
  constexpr unsigned long kHasCrc32 = 1ul << 7;  // HWCAP_CRC32 of asm/hwcap.h
  if (getauxval(AT_HWCAP) & kHasCrc32) return update_hardware;
#endif
  return update_table;
}

Update update() {
  static const Update chosen = choose();
  return chosen;
}

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t value) {
  return ~update()(~value, static_cast<const uint8_t*>(data), size);
}

uint32_t crc32c_portable(const void* data, size_t size, uint32_t value) {
  return ~update_table(~value, static_cast<const uint8_t*>(data), size);
}

uint32_t copy_crc32c(void* to, const void* from, size_t size, uint32_t value) {
  constexpr size_t kBlock = 12 * 1024;  // a multiple of 3 streams; both sides fit in 32 KiB of L1
  auto* out = static_cast<uint8_t*>(to);
  auto* in = static_cast<const uint8_t*>(from);
  const Update step = update();
  uint32_t crc = ~value;
  while (size > 0) {
    const size_t part = size < kBlock ? size : kBlock;
    std::memcpy(out, in, part);
    // Checksum the copy, not the source: the copy is sent, and the owner may change the source now.
    crc = step(crc, out, part);
    out += part;
    in += part;
    size -= part;
  }
  return ~crc;
}

}  // namespace ors
