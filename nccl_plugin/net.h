// Point to point over TCP: what ncclNet is made of, for every version of its table.
//
// Law: no function blocks, throws or starts a thread. A connection makes progress inside net_isend,
// net_irecv and net_test of its own requests and nowhere else, on the caller's thread, and each
// call moves a bounded number of bytes. Different connections may be used from different threads at
// once; one connection, like one listener, from one thread at a time.
//
// Messages of a connection are matched in order: the n-th net_isend to the n-th net_irecv. After a
// failure, every request that is not complete returns it, and so does every later call.
#pragma once

#include <cstddef>

#include "abi.h"

namespace ors::nccl {

constexpr size_t kNetRequests = 32;  // NCCL_NET_MAX_REQUESTS: of one connection, at a time
constexpr size_t kMaxNetSockets = 16;

struct NetSettings {
  int sockets = 4;           // of one connection: 1 to kMaxNetSockets
  size_t piece = 128 << 10;  // most bytes that a message gives to one socket at once
};

// Of the connecting side, which tells the other. Written before the first net_connect, never after:
// nothing locks it.
NetSettings& net_settings();

// Fills kHandleBytes, for those who are to connect.
Result net_listen(int device, void* handle, void** listen_comm);

// kSuccess without a comm: call again, with the same memory as the handle, which keeps the attempt.
// After a failure the memory is as the listener made it.
Result net_connect(int device, void* handle, void** send_comm);

// kSuccess without a comm: nobody is here yet. A listener takes any number of connections.
Result net_accept(void* listen_comm, void** receive_comm);

// kSuccess without a request: kNetRequests are in use, call again after a net_test.
// The caller's memory is not touched once net_test has said done, or after the comm is closed.
Result net_isend(void* send_comm, const void* data, size_t size, void** request);
Result net_irecv(void* receive_comm, void* data, size_t size, void** request);

// Once *done is 1 the request is no more. `size`, unless null, becomes the size of the message as
// it was sent. kRemoteError: the peer is gone, or broke the protocol. kInternalError: a message was
// larger than the memory that was posted for it.
Result net_test(void* request, int* done, size_t* size);

// At once, with requests in flight too: they are no more.
Result net_close_send(void* send_comm);
Result net_close_receive(void* receive_comm);
Result net_close_listen(void* listen_comm);

}  // namespace ors::nccl
