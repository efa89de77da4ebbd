// The records of the point-to-point transport: the handle, which NCCL carries from a listener to
// those who connect; the hello, which is first on every socket; the header of every piece.
//
// Law: every field of a peer is checked before it is believed. `unpack_*` return what is wrong, in
// words, or an empty string.
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

// Fills kHandleBytes. The state is null.
void pack_handle(const Handle& handle, void* out);
std::string unpack_handle(const void* in, Handle* handle);

// What the connecting side keeps in a handle between its calls, null where there is nothing. The
// handle need not be aligned. Handles come from peers: false for a state that this process did not
// store.
bool load_state(const void* handle, void** state);
void store_state(void* handle, void* state);

struct Hello {
  Identity listener{};    // whom this connection is for
  Identity connection{};  // the same on all of its sockets
  uint8_t index = 0;      // of this socket
  uint8_t count = 0;      // of sockets
};

void pack_hello(const Hello& hello, uint8_t* out);
std::string unpack_hello(const uint8_t* in, Hello* hello);

// A piece may be empty only where the message is.
struct Piece {
  uint64_t message = 0;  // counted from 0 in each connection
  uint64_t total = 0;    // bytes of the message
  uint64_t offset = 0;
  uint32_t length = 0;
};

void pack_piece(const Piece& piece, uint8_t* out);
std::string unpack_piece(const uint8_t* in, Piece* piece);

}  // namespace ors::nccl
