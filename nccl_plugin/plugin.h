// The plugin as a whole: whether this process wants it, and what its settings are.
#pragma once

#include "abi.h"
#include "settings.h"

namespace ors::nccl {

// Of ncclNet and ncclCollNet alike, any number of times. Not kSuccess where the plugin is not
// wanted, or cannot be had: NCCL then takes a net of its own, and a line in its log says why.
Result init(Logger log);

// Throws std::logic_error before a successful init().
const Settings& settings();

}  // namespace ors::nccl
