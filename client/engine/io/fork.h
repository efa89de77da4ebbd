// A forked child (for instance a DataLoader worker) must never touch its parent's sockets. The
// engine registers every descriptor here, and fork() closes all of them in the child.
#pragma once

#include <functional>

namespace ors {

// Calls `open`, registers the descriptor that it returns (unless below 0) and returns it. No fork
// can happen between the two.
int open_guarded(const std::function<int()>& open);
void close_guarded(int fd);

// A counter that differs between a parent and its forked child. Takes no lock.
int fork_generation();

}  // namespace ors
