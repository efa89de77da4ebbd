// Point to point over TCP: the functions behind ncclNet, for every version of the table.
//
// Law: no function blocks or throws. A connection makes progress inside net_isend, net_irecv and
// net_test of its own requests, on the caller's thread, and each call moves a bounded number of
// bytes. A connection with helper threads (REDUCER_NET_THREADS) starts them with its first request
// that needs them; they then move most bytes, and end in net_close. Different threads may use
// different connections at the same time. Only one thread at a time may use a connection or a
// listener.
//
// Messages of a connection are matched in order: the n-th net_isend to the n-th net_irecv. After a
// failure, every incomplete request and every later call return the failure.
#pragma once

#include <cstddef>

#include "abi.h"
#include "net_settings.h"

namespace ors::nccl {

constexpr size_t kNetRequests = 32;  // NCCL_NET_MAX_REQUESTS: in flight on one connection

// The sockets and pieces are the connecting side's choice; each end has its own number of threads.
// No lock protects the settings: write them only before the first connection.
NetSettings& net_settings();

// Fills `handle` (kHandleBytes), which the connecting side needs.
Result net_listen(int device, void* handle, void** listen_comm);

// kSuccess without a comm: call again with the same memory as handle, since the handle keeps the
// state of the attempt. After a failure the handle is as the listener made it.
Result net_connect(int device, void* handle, void** send_comm);

// kSuccess without a comm: no connection is complete yet. A listener accepts any number of
// connections.
Result net_accept(void* listen_comm, void** receive_comm);

// kSuccess without a request: kNetRequests are in flight; call again after a net_test. The caller's
// memory is not touched once net_test has set *done or the comm is closed.
Result net_isend(void* send_comm, const void* data, size_t size, void** request);
Result net_irecv(void* receive_comm, void* data, size_t size, void** request);

// Once *done is 1 the request is no longer valid. `size`, unless null, gets the size of the message
// that was sent. kRemoteError: the peer is gone or broke the protocol. kInternalError: a message
// was larger than the memory of its receive.
Result net_test(void* request, int* done, size_t* size);

// Closes at once, also with requests in flight; the requests are then no longer valid. In a forked
// child this frees what the parent opened, and every other call returns kInvalidUsage.
Result net_close(void* comm);
Result net_close_listen(void* listen_comm);

}  // namespace ors::nccl
