// Unix sockets to reducers on this machine: cheaper than TCP over loopback.
#pragma once

#include "io/socket.h"

namespace ors {

// Returns a connected, non-blocking Unix socket to the reducer that listens on the TCP address
// `to`. Returns -1 if the address does not belong to this machine, if the reducer has no Unix
// socket, or if a different user listens on the socket.
//
// Any process in the network namespace may bind an abstract name first. The listener must therefore
// run as this user or as root. Such a listener gains nothing over one on TCP.
int connect_local(const SocketAddress& to);

}  // namespace ors
