// The plugin as a whole: whether it is enabled in this process, and its settings.
#pragma once

#include "abi.h"
#include "settings.h"

namespace ors::nccl {

// The init of ncclNet, ncclCollNet and the tuner; NCCL calls it any number of times. Fails if the
// plugin is not enabled or a setting is invalid: NCCL then uses a net of its own, and a line in
// NCCL's log gives the reason.
Result init(Logger log);

// Throws std::logic_error if init() has not succeeded before.
const Settings& settings();

}  // namespace ors::nccl
