#include "codec/wire.h"

#include "codec/crc.h"

namespace ors {
namespace {

constexpr uint8_t kFrameMagic[4] = {'O', 'R', 'S', 'F'};
constexpr uint8_t kPrefaceMagic[4] = {'O', 'R', 'S', 'P'};

constexpr size_t kAtVersion = 4;
constexpr size_t kAtReserved = 9;
constexpr size_t kAtHeaderCrc = 76;
static_assert(kAtHeaderCrc + sizeof(uint32_t) == kHeaderSize);

// Calls `field` with the offset and the member for each field that a Header has.
template <class AnyHeader, class Field>
void each_field(AnyHeader& h, Field field) {
  field(5, h.kind);
  field(6, h.dtype);
  field(7, h.op);
  field(8, h.collective);
  field(10, h.flags);
  field(12, h.rank);
  field(14, h.root);
  field(16, h.epoch);
  field(20, h.chunk);
  field(24, h.key);
  field(32, h.round);
  field(40, h.count);
  field(48, h.done);
  field(56, h.stable);
  field(64, h.length);
  field(68, h.route);
  field(72, h.payload_crc);
}

const char* check_length(uint8_t kind, uint32_t length) {
  switch (kind) {
    case kHello:
    case kPending:
    case kWelcome:
    case kError:
    case kGoaway:
    case kKey:
    case kStall:
    case kRefused:
    case kAbandon:
    case kRoute:
    case kSuspect:
    case kAbsent:
    case kRegistry:
    case kRecord:
    case kTable:
    case kNotice:
      if (length == 0) return "a control frame without its map";
      return length <= kMaxControlBytes ? nullptr : "a control frame longer than 65536 bytes";
    case kStats:
      return length <= kMaxControlBytes ? nullptr : "a control frame longer than 65536 bytes";
    case kHeartbeat:
      if (length % 16 != 0) return "a heartbeat whose length is not a multiple of 16 bytes";
      return length <= kMaxHeartbeatEntries * 16 ? nullptr
                                                 : "a heartbeat of more than 4096 entries";
    case kContribution:
    case kResult:
    case kPush:
    case kValue:
      return length <= kMaxChunkBytes ? nullptr : "a chunk longer than 4 MiB";
    case kLog:
      return length <= kMaxChunkBytes + kScalarsBytes ? nullptr : "a chunk longer than 4 MiB";
    case kBye:
    case kGrant:
    case kDescribe:
    case kPull:
    case kReceipt:
    case kLogged:
      return length == 0 ? nullptr : "a payload in a frame of a kind that has none";
    default:
      return "an unknown kind of frame";
  }
}

}  // namespace

void pack_header(const Header& h, uint8_t* out) {
  std::memcpy(out, kFrameMagic, sizeof kFrameMagic);
  out[kAtVersion] = kProtocolMajor;
  out[kAtReserved] = 0;
  each_field(h, [out](size_t at, auto value) { store(out + at, value); });
  store(out + kAtHeaderCrc, crc32c(out, kAtHeaderCrc));
}

const char* unpack_header(const uint8_t* in, Header* h, ErrorCode* code) {
  *code = ErrorCode::kProtocol;
  if (std::memcmp(in, kFrameMagic, sizeof kFrameMagic) != 0) return "bytes that are no frame";
  if (in[kAtVersion] != kProtocolMajor) {
    *code = ErrorCode::kVersion;
    return "a frame of an unknown protocol version: install the same release on both sides";
  }
  if (load<uint32_t>(in + kAtHeaderCrc) != crc32c(in, kAtHeaderCrc)) {
    *code = ErrorCode::kCorrupted;
    return "a bad header CRC";
  }
  if (in[kAtReserved] != 0) return "a reserved byte that is not 0";
  each_field(*h, [in](size_t at, auto& value) { std::memcpy(&value, in + at, sizeof value); });
  if (h->length == 0 && h->payload_crc != 0) return "a payload CRC without a payload";
  return check_length(h->kind, h->length);
}

std::string version(const Preface& preface) {
  return std::to_string(preface.major) + "." + std::to_string(preface.minor);
}

std::string pack_preface(const Preface& preface) {
  std::string packed(kPrefaceSize, '\0');
  auto* out = reinterpret_cast<uint8_t*>(packed.data());
  std::memcpy(out, kPrefaceMagic, sizeof kPrefaceMagic);
  out[4] = preface.major;
  out[5] = preface.minor;
  store(out + 6, preface.flags);
  store(out + 8, preface.lane);
  return packed;
}

const char* unpack_preface(const uint8_t* in, Preface* preface) {
  if (std::memcmp(in, kPrefaceMagic, sizeof kPrefaceMagic) != 0) return "no preface magic";
  preface->major = in[4];
  preface->minor = in[5];
  preface->flags = load<uint16_t>(in + 6);
  preface->lane = load<uint16_t>(in + 8);
  for (size_t i = 10; i < kPrefaceSize; ++i) {
    if (in[i] != 0) return "a reserved byte of the preface that is not 0";
  }
  return nullptr;
}

uint64_t key_id(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace ors
