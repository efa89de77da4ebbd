// A forked child (a DataLoader's worker) must never touch its parent's sockets: every descriptor
// of ours is registered here and closed in the child as soon as it exists.
#pragma once

#include <functional>

namespace ors {

// Opens a descriptor by `open` and registers it, with no fork in between. Returns what it returned.
int open_guarded(const std::function<int()>& open);
void close_guarded(int fd);

// Another number in a forked child than in its parent. Takes no lock.
int fork_generation();

}  // namespace ors
