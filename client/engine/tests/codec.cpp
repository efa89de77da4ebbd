// Tests CRC, casts and msgpack: compares each fast version with a slow, simple one, and decodes
// corrupted input.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/cast.h"
#include "codec/crc.h"
#include "codec/msgpack.h"
#include "protocol/messages.h"

namespace {

std::mt19937_64 rng(1);

uint32_t crc_by_bits(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
  }
  return ~crc;
}

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng());
  return bytes;
}

void check_crc() {
  for (const size_t size : {0u, 1u, 7u, 8u, 76u, 3071u, 3072u, 3073u, 10000u, 12288u, 65537u}) {
    const std::string bytes = random_bytes(size);
    const uint32_t expected = crc_by_bits(bytes);
    CHECK(ors::crc32c(bytes.data(), size) == expected);
    const size_t cut = size / 3;
    const uint32_t head = ors::crc32c(bytes.data(), cut);
    CHECK(ors::crc32c(bytes.data() + cut, size - cut, head) == expected);
    std::string copy(size, '\0');
    CHECK(ors::copy_crc32c(copy.data(), bytes.data(), size) == expected);
    CHECK(copy == bytes);
  }
}

// Rounding by arithmetic: scale so that the last kept place is 1, round half to even, scale back.
uint16_t half_by_arithmetic(float value) {
  if (std::isnan(value)) return 0x7E00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int place = std::max(exponent - 11, -24);
  const double units = std::nearbyint(std::ldexp(magnitude, -place));
  if (place == -24) return static_cast<uint16_t>(sign | static_cast<uint16_t>(units));
  return static_cast<uint16_t>(sign | ((place + 24) * 1024 + static_cast<int>(units)));
}

void check_casts() {
  std::vector<float> wide;
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto h = static_cast<uint16_t>(half);
    float value;
    ors::widen_f16(&h, &value, 1);
    wide.push_back(value);
    if (!std::isnan(value)) CHECK(half_by_arithmetic(value) == h);
    // ties and the values next to them
    wide.push_back(std::nextafterf(value, 1e30f));
    wide.push_back(value * 1.00048828125f);
  }
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<uint32_t>(rng());
    float value;
    std::memcpy(&value, &bits, 4);
    wide.push_back(value);
  }
  std::vector<uint16_t> narrow(wide.size());
  ors::narrow_f16(wide.data(), narrow.data(), wide.size());
  for (size_t i = 0; i < wide.size(); ++i) CHECK(narrow[i] == half_by_arithmetic(wide[i]));
  std::vector<uint16_t> one(1);
  for (size_t i = 0; i < wide.size(); i += 7) {  // sizes that are no multiple of the vector width
    ors::narrow_f16(&wide[i], one.data(), 1);
    CHECK(one[0] == narrow[i]);
  }
  ors::narrow_bf16(wide.data(), narrow.data(), wide.size());
  std::vector<float> back(wide.size());
  ors::widen_bf16(narrow.data(), back.data(), wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &wide[i], 4);
    if (std::isnan(wide[i])) {
      CHECK(narrow[i] == 0x7FC0);
    } else {
      const uint32_t low = bits & 0xFFFF;
      uint32_t high = bits >> 16;
      if (low > 0x8000 || (low == 0x8000 && (high & 1))) ++high;
      CHECK(narrow[i] == high);
    }
  }
}

void check_msgpack_damage() {
  ors::Hello hello;
  hello.job = "job";
  hello.run_id = std::string(100, 'r');
  hello.incarnation = std::string(16, 'i');
  hello.chunk_table = {{0, 65536}, {1 << 20, 131072}};
  const std::string good = ors::encode_hello(hello);
  ors::Value value;
  CHECK(ors::msgpack_decode(good, &value) == nullptr);
  std::string again;
  ors::msgpack_encode(value, &again);
  CHECK(again == good);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = i % 4 == 0 ? random_bytes(rng() % 60) : good;
    for (uint64_t n = rng() % 4; n > 0 && !bad.empty(); --n) {
      bad[rng() % bad.size()] = static_cast<char>(rng());
    }
    if (i % 3 == 0) bad.resize(rng() % (bad.size() + 1));
    ors::Welcome welcome;
    ors::Pending pending;
    ors::Failure failure;
    std::vector<ors::StalledRound> rounds;
    ors::Route route;
    ors::Suspicion suspicion;
    ors::Absence absence;
    (void)ors::msgpack_decode(bad, &value);
    (void)ors::decode_welcome(bad, &welcome);
    (void)ors::decode_pending(bad, &pending);
    (void)ors::decode_error(bad, &failure);
    (void)ors::decode_refused(bad, &failure);
    (void)ors::decode_stall(bad, &rounds);
    (void)ors::decode_route(bad, &route);
    (void)ors::decode_suspect(bad, &suspicion);
    (void)ors::decode_absent(bad, &absence);
  }
  CHECK(ors::msgpack_decode(std::string(9, '\x91'), &value) != nullptr);  // too deep
  CHECK(ors::msgpack_decode(std::string("\xDD\xFF\xFF\xFF\xFF", 5), &value) !=
        nullptr);  // a huge count without items
}

}  // namespace

int main() {
  check_crc();
  check_casts();
  check_msgpack_damage();
}
