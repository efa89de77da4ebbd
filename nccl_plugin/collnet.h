// Collectives through the reducers: what ncclCollNet is made of, for every version of its table.
//
// A communicator's ranks are one run of a job at the reducers, on a client engine of its own. Law:
// nothing here throws, and but for connecting and closing nothing waits for a peer: the engine's
// thread moves the bytes, but for requests of one chunk, which the caller copies and sends as far
// as the sockets take them. NCCL issues the requests of a communicator in one order on all ranks,
// so that the n-th of each is the same one.
#pragma once

#include <cstddef>

#include "abi.h"
#include "settings.h"

namespace ors::nccl {

// Fills kHandleBytes, for all ranks of the group to know.
Result coll_listen(const Settings& settings, void* handle, void** listen_comm);

// Returns when all ranks are there, or fails: within the connect timeout. No rank gets in before
// all have joined; see Group::join for the rank that fails alone.
Result coll_connect(const Settings& settings, void* handles[], int ranks, int rank,
                    void* listen_comm, void** comm);

bool coll_supports(DataType type, RedOp op);

// kSuccess without a request: too many are in flight, call again after a coll_test. The memory must
// stay, unchanged but by the result, until coll_test has said done. Garbage in it is summed, too.
Result coll_all_reduce(void* comm, const void* send, void* receive, size_t count, DataType type,
                       RedOp op, void** request);

// Part of an all-gather whose result is `bytes_per_rank` of each rank in a row: `receive` becomes
// the bytes [offset, offset + size) of that row. `send`: what of them is this rank's.
Result coll_all_gather(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                       size_t offset, size_t size, void** request);

// Part of a reduce-scatter of `bytes_per_rank` for each rank in a row: `send` is the bytes
// [offset, offset + size) of that row. `receive` becomes what of their sum is this rank's.
Result coll_reduce_scatter(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                           size_t offset, size_t size, DataType type, RedOp op, void** request);

// Once *done is 1 the request is no more; `size`, unless null, is its result's in bytes.
Result coll_test(void* request, int* done, int* size);

// At most some seconds, with requests in flight too: they are no more, and no memory is touched.
Result coll_close(void* comm);
Result coll_close_listen(void* listen_comm);

}  // namespace ors::nccl
