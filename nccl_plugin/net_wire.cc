#include "net_wire.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "codec/wire.h"
#include "crypto/random.h"
#include "net.h"

namespace ors::nccl {
namespace {

constexpr uint32_t kHandleMagic = 0x4853524F;  // "ORSH"
constexpr uint32_t kHelloMagic = 0x4E53524F;   // "ORSN"
constexpr uint32_t kPieceMagic = 0x4D53524F;   // "ORSM"

// Layout of a handle: magic, version, size of the address, address, identity, state, seal of the
// state.
constexpr size_t kAddressAt = 8;
constexpr size_t kAddressBytes = sizeof(sockaddr_in6);
constexpr size_t kListenerAt = kAddressAt + kAddressBytes;
constexpr size_t kStateAt = kListenerAt + sizeof(Identity);
static_assert(sizeof(sockaddr_in) <= kAddressBytes);
constexpr size_t kSealAt = kStateAt + sizeof(void*);
static_assert(kSealAt + sizeof(uint64_t) <= kHandleBytes);

std::string differs(const char* what, unsigned long expected, unsigned long got) {
  char text[96];
  std::snprintf(text, sizeof text, "%s: expected 0x%lx, got 0x%lx", what, expected, got);
  return text;
}

std::string check_start(const uint8_t* in, uint32_t magic, const char* what) {
  const std::string name = what;
  if (load<uint32_t>(in) != magic) {
    return differs((name + " with a wrong magic").c_str(), magic, load<uint32_t>(in));
  }
  if (load<uint16_t>(in + 4) != kNetVersion) {
    return differs((name + " of another protocol version").c_str(), kNetVersion,
                   load<uint16_t>(in + 4));
  }
  return {};
}

// Only this process can make the seal of a state, so bytes from a peer never become a pointer.
uint64_t seal_of(const void* state) {
  static const Identity secret = random_identity();
  return state == nullptr ? 0 : reinterpret_cast<uintptr_t>(state) ^ load<uint64_t>(secret.data());
}

}  // namespace

Identity random_identity() {
  Identity identity;
  const std::string bytes = random_bytes(identity.size());
  std::copy(bytes.begin(), bytes.end(), identity.begin());
  return identity;
}

std::string address_text(const SocketAddress& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.size, host,
                    sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool brackets = address.storage.ss_family == AF_INET6;
  return (brackets ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

void pack_handle(const Handle& handle, void* out) {
  auto* bytes = static_cast<uint8_t*>(out);
  std::memset(bytes, 0, kHandleBytes);
  store<uint32_t>(bytes, kHandleMagic);
  store<uint16_t>(bytes + 4, kNetVersion);
  store<uint16_t>(bytes + 6, static_cast<uint16_t>(handle.address.size));
  std::memcpy(bytes + kAddressAt, &handle.address.storage,
              std::min<size_t>(handle.address.size, kAddressBytes));
  store(bytes + kListenerAt, handle.listener);
}

std::string unpack_handle(const void* in, Handle* handle) {
  const auto* bytes = static_cast<const uint8_t*>(in);
  if (std::string wrong = check_start(bytes, kHandleMagic, "a handle"); !wrong.empty()) {
    return wrong;
  }
  *handle = Handle();
  handle->address.size = load<uint16_t>(bytes + 6);
  std::memcpy(&handle->address.storage, bytes + kAddressAt, kAddressBytes);
  const int family = handle->address.storage.ss_family;
  const size_t size = family == AF_INET    ? sizeof(sockaddr_in)
                      : family == AF_INET6 ? sizeof(sockaddr_in6)
                                           : 0;
  if (size == 0 || handle->address.size != size) {
    return "a handle with an address of family " + std::to_string(family) + " and " +
           std::to_string(handle->address.size) + " bytes";
  }
  handle->listener = load<Identity>(bytes + kListenerAt);
  return {};
}

bool load_state(const void* handle, void** state) {
  const auto* bytes = static_cast<const uint8_t*>(handle);
  *state = load<void*>(bytes + kStateAt);
  return load<uint64_t>(bytes + kSealAt) == seal_of(*state);
}

void store_state(void* handle, void* state) {
  auto* bytes = static_cast<uint8_t*>(handle);
  store<void*>(bytes + kStateAt, state);
  store<uint64_t>(bytes + kSealAt, seal_of(state));
}

void pack_hello(const Hello& hello, uint8_t* out) {
  store<uint32_t>(out, kHelloMagic);
  store<uint16_t>(out + 4, kNetVersion);
  out[6] = hello.index;
  out[7] = hello.count;
  store(out + 8, hello.listener);
  store(out + 24, hello.connection);
}

std::string unpack_hello(const uint8_t* in, Hello* hello) {
  if (std::string wrong = check_start(in, kHelloMagic, "a hello"); !wrong.empty()) return wrong;
  hello->index = in[6];
  hello->count = in[7];
  if (hello->count < 1 || hello->count > kMaxNetSockets || hello->index >= hello->count) {
    return "a hello of socket " + std::to_string(hello->index) + " of " +
           std::to_string(hello->count) + ": expected one of at most " +
           std::to_string(kMaxNetSockets);
  }
  hello->listener = load<Identity>(in + 8);
  hello->connection = load<Identity>(in + 24);
  return {};
}

void pack_piece(const Piece& piece, uint8_t* out) {
  store<uint32_t>(out, kPieceMagic);
  store<uint32_t>(out + 4, piece.length);
  store<uint64_t>(out + 8, piece.message);
  store<uint64_t>(out + 16, piece.total);
  store<uint64_t>(out + 24, piece.offset);
}

std::string unpack_piece(const uint8_t* in, Piece* piece) {
  if (load<uint32_t>(in) != kPieceMagic) {
    return differs("a piece with a wrong magic", kPieceMagic, load<uint32_t>(in));
  }
  piece->length = load<uint32_t>(in + 4);
  piece->message = load<uint64_t>(in + 8);
  piece->total = load<uint64_t>(in + 16);
  piece->offset = load<uint64_t>(in + 24);
  const bool inside = piece->total <= kMaxNetBytes && piece->offset <= piece->total &&
                      piece->length <= piece->total - piece->offset;
  if (!inside || (piece->length == 0 && piece->total > 0)) {
    return "an impossible piece of message " + std::to_string(piece->message) + ": " +
           std::to_string(piece->length) + " bytes at " + std::to_string(piece->offset) + " of " +
           std::to_string(piece->total);
  }
  return {};
}

}  // namespace ors::nccl
