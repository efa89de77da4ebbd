// Collectives through the reducers: the functions behind ncclCollNet, for every version of the
// table.
//
// The ranks of a communicator are one run of a job at the reducers; each communicator has a client
// engine of its own. Law: no function throws, and only connect and close wait for a peer. The
// engine's thread moves the bytes. Exception: the caller copies a request of one chunk and sends it
// as far as the sockets accept bytes. NCCL issues the requests of a communicator in the same order
// on all ranks, so the n-th requests of the ranks belong together.
#pragma once

#include <cstddef>

#include "abi.h"
#include "settings.h"

namespace ors::nccl {

// Fills `handle` (kHandleBytes), which NCCL passes to all ranks of the group.
Result coll_listen(const Settings& settings, void* handle, void** listen_comm);

// Returns when all ranks have connected, or fails within the connect timeout. No rank returns
// before all have joined; see Group::join for a rank that fails alone.
Result coll_connect(const Settings& settings, void* handles[], int ranks, int rank,
                    void* listen_comm, void** comm);

bool coll_supports(DataType type, RedOp op);

// kSuccess without a request: too many are in flight; call again after a coll_test. The caller must
// neither free nor change the memory until coll_test sets *done.
Result coll_all_reduce(void* comm, const void* send, void* receive, size_t count, DataType type,
                       RedOp op, void** request);

// A window of an all-gather, whose whole result is `bytes_per_rank` of each rank, in order of
// ranks. `receive` gets the bytes [offset, offset + size) of the result. `send` has this rank's
// part of the window.
Result coll_all_gather(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                       size_t offset, size_t size, void** request);

// A window of a reduce-scatter, whose whole input is `bytes_per_rank` for each rank, in order of
// ranks. `send` has the bytes [offset, offset + size) of the input. `receive` gets this rank's part
// of their sum.
Result coll_reduce_scatter(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                           size_t offset, size_t size, DataType type, RedOp op, void** request);

// Once *done is 1 the request is no longer valid. `size`, unless null, gets the bytes of the
// result.
Result coll_test(void* request, int* done, int* size);

// Takes a few seconds at most, also with requests in flight. Afterwards the requests are no longer
// valid, and their memory is not touched.
Result coll_close(void* comm);
Result coll_close_listen(void* listen_comm);

}  // namespace ors::nccl
