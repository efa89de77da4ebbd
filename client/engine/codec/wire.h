// The wire format (reducer/wire/PROTOCOL.md): constants, limits, preface and frame header.
//
// Law: no parser here allocates, and every byte from a peer is validated before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ors {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "payloads are little-endian and are not swapped");

constexpr uint8_t kProtocolMajor = 1;
constexpr uint8_t kProtocolMinor = 5;
constexpr size_t kPrefaceSize = 16;
constexpr size_t kHeaderSize = 80;
constexpr uint16_t kNoRank = 0xFFFF;

// Limits and their reasons: PROTOCOL.md, section 10.
constexpr uint32_t kMaxControlBytes = 65'536;
constexpr int kMaxControlDepth = 8;
constexpr uint32_t kMaxControlItems = 4'096;
constexpr uint32_t kScalarsBytes = 24;  // behind a gradient in LOG
constexpr uint32_t kMaxChunkBytes = 4u << 20;
constexpr uint32_t kMaxChunks = 1u << 24;
constexpr uint32_t kMaxWorldSize = 8'192;
constexpr size_t kMaxKeyBytes = 512;
constexpr size_t kMaxJobBytes = 128;
constexpr size_t kMaxRunIdBytes = 128;
constexpr size_t kMaxChunkTableRows = 16;
constexpr size_t kMaxHeartbeatEntries = 4'096;
// How HTTP begins, and what to say of a server that answers so in place of a reducer.
constexpr char kHttp[] = "HTTP";
constexpr char kIsHttp[] =
    "answers HTTP: it is no port for workers (2222, --port), but perhaps the metrics port (2223)";
constexpr uint64_t kMaxReducers = 4'096;
constexpr uint64_t kMaxWeighted = 512;   // reducers of a job whose weights differ
constexpr uint64_t kMaxWeights = 4'096;  // sum of the weights
constexpr uint64_t kMaxLanes = 1'024;
constexpr size_t kMaxAbsent = 64;
constexpr size_t kMaxLosses = 256;  // ranks that one run may lose and go on
constexpr size_t kMaxTextBytes = 16'384;
constexpr uint64_t kMinChunkCost = 4'096;
constexpr uint32_t kWorkerSilenceMs = 5'000;  // default if WELCOME has none
constexpr uint32_t kMaxSilenceMs = 3'600'000;
constexpr int kPositionBits = 24;

enum Kind : uint8_t {
  kHello = 1,
  kPending = 2,
  kWelcome = 3,
  kError = 4,
  kGoaway = 5,
  kBye = 6,
  kKey = 7,
  kStats = 8,
  kStall = 9,
  kRefused = 10,
  kContribution = 16,
  kResult = 17,
  kGrant = 18,
  kAbandon = 19,
  kHeartbeat = 20,
  kDescribe = 21,
  kRoute = 22,
  kSuspect = 23,
  kAbsent = 24,
  kRegistry = 25,
  kRecord = 26,
  kTable = 27,
  kNotice = 28,
  kPush = 29,
  kPull = 30,
  kValue = 31,
  kReceipt = 32,
  kLog = 33,
  kLogged = 34,
};

enum DType : uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt8 = 5,
  kUInt8 = 6,
  kInt32 = 7,
  kUInt32 = 8,
  kInt64 = 9,
  kUInt64 = 10,
  kFloat8E4M3 = 11,
  kFloat8E5M2 = 12,
  // Quantised blocks of float32, since minor 5. The results of the last three are in bfloat16.
  kInt8Blocks = 13,
  kE4M3Blocks = 14,
  kE3M0Blocks = 15,
  kInt8BlocksToBFloat16 = 16,
  kE4M3BlocksToBFloat16 = 17,
  kE3M0BlocksToBFloat16 = 18,
};

constexpr uint32_t kBlocksMinor = 5;
constexpr bool is_blocks(uint8_t dtype) {
  return dtype >= kInt8Blocks && dtype <= kE3M0BlocksToBFloat16;
}
constexpr bool has_block_results(uint8_t dtype) {
  return dtype >= kInt8Blocks && dtype <= kE3M0Blocks;
}

enum Op : uint8_t {
  kNone = 0,
  kSum = 1,
  kMean = 2,
  kMin = 3,
  kMax = 4,
  kProd = 5,
  kCopy = 6,
  kBand = 7,  // kBand, kBor, kBxor: bitwise, integers only, since minor 1
  kBor = 8,
  kBxor = 9,
};

constexpr uint32_t kBitwiseMinor = 1;
constexpr bool is_bitwise(uint8_t op) { return op >= kBand && op <= kBxor; }
constexpr bool is_integer(uint8_t dtype) { return dtype >= kInt8 && dtype <= kUInt64; }

enum Collective : uint8_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kBarrier = 5,
};

enum Flag : uint16_t { kWide = 1, kOverflow = 2, kNan = 4, kHeld = 8, kNonFinite = 16 };

enum class ErrorCode : uint32_t {
  kProtocol = 1,
  kVersion = 2,
  kAuthentication = 3,
  kJoin = 4,
  kMismatch = 5,
  kPeerLost = 6,
  kQuota = 7,
  kIntegrity = 8,
  kUnavailable = 9,
  kTimeout = 10,
  kNumeric = 11,
  kInternal = 12,
  kCorrupted = 13,
  kStateLost = 14,
  kStaleBase = 15,
  kEvicted = 16,
};

// Size of one element in bytes; 0 for blocks and for an unknown dtype. layout.h has all sizes.
constexpr uint32_t item_size(uint8_t dtype) {
  switch (dtype) {
    case kFloat32:
    case kInt32:
    case kUInt32:
      return 4;
    case kFloat64:
    case kInt64:
    case kUInt64:
      return 8;
    case kFloat16:
    case kBFloat16:
      return 2;
    case kInt8:
    case kUInt8:
    case kFloat8E4M3:
    case kFloat8E5M2:
      return 1;
    default:
      return 0;
  }
}

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

struct Header {
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t collective = 0;
  uint16_t flags = 0;
  uint16_t rank = kNoRank;  // contribution: the sender; result: see section 2
  uint16_t root = 0;
  uint32_t epoch = 0;
  uint32_t chunk = 0;
  uint64_t key = 0;
  uint64_t round = 0;
  uint64_t count = 0;
  uint64_t done = 0;
  uint64_t stable = 0;
  uint32_t length = 0;
  uint32_t route = 0;
  uint32_t payload_crc = 0;
};

void pack_header(const Header& header, uint8_t* out);

// Parses kHeaderSize bytes. Returns nullptr, or an error as a static text and sets its code.
const char* unpack_header(const uint8_t* in, Header* header, ErrorCode* code);

// Preface::flags. Psk: the handshake of section 12 precedes the first frame. Tls: all bytes after
// the preface are TLS (section 13).
constexpr uint16_t kPrefacePsk = 1;
constexpr uint16_t kPrefaceTls = 2;

struct Preface {
  uint16_t flags = 0;
  uint16_t lane = 0;
  uint8_t major = kProtocolMajor;
  uint8_t minor = kProtocolMinor;
};

// "1.2"
std::string version(const Preface& preface);

std::string pack_preface(const Preface& preface);

// Parses kPrefaceSize bytes. The caller must check major, minor and flags.
const char* unpack_preface(const uint8_t* in, Preface* preface);

// The 64-bit FNV-1a of a key's UTF-8 name.
uint64_t key_id(std::string_view name);

// round x 2^24 + chunk: PROTOCOL.md, section 8.
constexpr uint64_t position(uint64_t round, uint32_t chunk) {
  return (round << kPositionBits) + chunk;
}

}  // namespace ors
