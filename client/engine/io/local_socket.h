// Unix sockets to reducers on this machine: cheaper than TCP over loopback.
#pragma once

#include "io/socket.h"

namespace ors {

// A connected, non-blocking Unix socket to the reducer that listens on a TCP address, or -1: the
// address is not of this machine, the reducer has no such socket, or another user listens on it.
//
// Abstract names have no owner: anyone in this network namespace may take one first. Hence the
// listener's user must be ours or root; what he may do beyond TCP is then nothing new.
int connect_local(const SocketAddress& to);

}  // namespace ors
