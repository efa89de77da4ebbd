// Converts between Python values and the engine's, and raises failures as exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codec/failure.h"
#include "codec/msgpack.h"
#include "crypto/hmac.h"
#include "protocol/chunk_owners.h"
#include "protocol/chunk_plan.h"
#include "protocol/lost_ranks.h"
#include "protocol/submission.h"
#include "python/pybuffer.h"

namespace ors::python {

// Adds the class EngineError to the module.
void add_engine_error(nb::module_& m);
// Raises this class from now on, which another module has added.
void use_engine_error(nb::handle type);
// Raises EngineError with the six fields of the failure.
[[noreturn]] void raise(const Failure& failure);
nb::object failure_tuple(const Failure& failure);
Failure forked_failure();

ChunkTable chunk_table_of(const std::vector<std::pair<uint64_t, uint64_t>>& rows);

// Converts the arguments of a submit and pins its buffers. Raises ValueError on invalid arguments.
Submission make_submission(int collective, int op, int dtype, bool wide, const std::string& key,
                           int64_t root, uint64_t count, nb::object source, nb::object target,
                           bool notify, int32_t priority, nb::object residual, bool stochastic,
                           Pins* pins);

// Pins a word of DeviceWords; null for None.
std::atomic<uint32_t>* pin_word(nb::object word, std::unique_ptr<Pin>* pin);

nb::object to_python(const Value& value);
nb::list losses_of(const Route& route);                  // (epoch, rank)
nb::list lost_ranks(const std::vector<LostRank>& lost);  // (rank, reason, message)

// Returns a job's key; empty for no bytes. Raises ValueError on any other size.
Secret secret_of(const nb::bytes& key);

}  // namespace ors::python
