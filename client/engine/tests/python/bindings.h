// Bindings of parts of the engine, for tests and bench/scale.
#pragma once

#include <nanobind/nanobind.h>

namespace ors::python {

namespace nb = nanobind;

void bind_handshake(nb::module_& m);
void bind_codec(nb::module_& m);
void bind_state(nb::module_& m);

}  // namespace ors::python
