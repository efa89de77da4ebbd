#include "codec/wire.h"

#include "codec/crc.h"

namespace ors {
namespace {

constexpr uint8_t kFrameMagic[4] = {'O', 'R', 'S', 'F'};
constexpr uint8_t kPrefaceMagic[4] = {'O', 'R', 'S', 'P'};

enum Offset : size_t {
  kAtVersion = 4,
  kAtKind = 5,
  kAtDType = 6,
  kAtOp = 7,
  kAtCollective = 8,
  kAtReserved = 9,
  kAtFlags = 10,
  kAtRank = 12,
  kAtRoot = 14,
  kAtEpoch = 16,
  kAtChunk = 20,
  kAtKey = 24,
  kAtRound = 32,
  kAtCount = 40,
  kAtDone = 48,
  kAtStable = 56,
  kAtLength = 64,
  kAtRoute = 68,
  kAtPayloadCrc = 72,
  kAtHeaderCrc = 76,
};
static_assert(kAtHeaderCrc + sizeof(uint32_t) == kHeaderSize);

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
      return length <= kMaxChunkBytes ? nullptr : "a chunk longer than 4 MiB";
    case kBye:
    case kGrant:
    case kDescribe:
      return length == 0 ? nullptr : "a payload in a frame that has none";
    default:
      return "an unknown kind of frame";
  }
}

}  // namespace

void pack_header(const Header& h, uint8_t* out) {
  std::memcpy(out, kFrameMagic, sizeof kFrameMagic);
  out[kAtVersion] = kProtocolMajor;
  out[kAtKind] = h.kind;
  out[kAtDType] = h.dtype;
  out[kAtOp] = h.op;
  out[kAtCollective] = h.collective;
  out[kAtReserved] = 0;
  store(out + kAtFlags, h.flags);
  store(out + kAtRank, h.rank);
  store(out + kAtRoot, h.root);
  store(out + kAtEpoch, h.epoch);
  store(out + kAtChunk, h.chunk);
  store(out + kAtKey, h.key);
  store(out + kAtRound, h.round);
  store(out + kAtCount, h.count);
  store(out + kAtDone, h.done);
  store(out + kAtStable, h.stable);
  store(out + kAtLength, h.length);
  store(out + kAtRoute, h.route);
  store(out + kAtPayloadCrc, h.payload_crc);
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
  h->kind = in[kAtKind];
  h->dtype = in[kAtDType];
  h->op = in[kAtOp];
  h->collective = in[kAtCollective];
  h->flags = load<uint16_t>(in + kAtFlags);
  h->rank = load<uint16_t>(in + kAtRank);
  h->root = load<uint16_t>(in + kAtRoot);
  h->epoch = load<uint32_t>(in + kAtEpoch);
  h->chunk = load<uint32_t>(in + kAtChunk);
  h->key = load<uint64_t>(in + kAtKey);
  h->round = load<uint64_t>(in + kAtRound);
  h->count = load<uint64_t>(in + kAtCount);
  h->done = load<uint64_t>(in + kAtDone);
  h->stable = load<uint64_t>(in + kAtStable);
  h->length = load<uint32_t>(in + kAtLength);
  h->route = load<uint32_t>(in + kAtRoute);
  h->payload_crc = load<uint32_t>(in + kAtPayloadCrc);
  if (h->length == 0 && h->payload_crc != 0) return "a payload CRC without a payload";
  return check_length(h->kind, h->length);
}

std::string version(const Preface& preface) {
  return std::to_string(preface.major) + "." + std::to_string(preface.minor);
}

void pack_preface(const Preface& preface, uint8_t* out) {
  std::memset(out, 0, kPrefaceSize);
  std::memcpy(out, kPrefaceMagic, sizeof kPrefaceMagic);
  out[4] = preface.major;
  out[5] = preface.minor;
  store(out + 6, preface.flags);
  store(out + 8, preface.lane);
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
