// The records of the point-to-point transport: the handle, which NCCL passes from a listener to the
// connecting side; the hello, which is the first record on every socket; the header of a piece.
//
// Law: every field from a peer is checked before it is used. `unpack_*` return the error as text,
// or an empty string.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "abi.h"
#include "io/socket.h"

namespace ors::nccl {

constexpr uint16_t kNetVersion = 1;
constexpr size_t kHelloBytes = 40;
constexpr size_t kPieceBytes = 32;

using Identity = std::array<uint8_t, 16>;
Identity random_identity();

std::string address_text(const SocketAddress& address);

struct Handle {
  SocketAddress address;
  Identity listener{};
};

// Fills `out` (kHandleBytes), with a null state.
void pack_handle(const Handle& handle, void* out);
std::string unpack_handle(const void* in, Handle* handle);

// The state that the connecting side keeps in a handle between calls; null if there is none. The
// handle may have any alignment. A handle comes from a peer, so load_state returns false if this
// process did not store the state.
bool load_state(const void* handle, void** state);
void store_state(void* handle, void* state);

struct Hello {
  Identity listener{};    // the listener that this connection is for
  Identity connection{};  // the same on all sockets of the connection
  uint8_t index = 0;      // index of this socket
  uint8_t count = 0;      // number of sockets
};

void pack_hello(const Hello& hello, uint8_t* out);
std::string unpack_hello(const uint8_t* in, Hello* hello);

// A piece may be empty only if the message is empty.
struct Piece {
  uint64_t message = 0;  // counted from 0 in each connection
  uint64_t total = 0;    // bytes of the message
  uint64_t offset = 0;
  uint32_t length = 0;
};

void pack_piece(const Piece& piece, uint8_t* out);
std::string unpack_piece(const uint8_t* in, Piece* piece);

}  // namespace ors::nccl
