// The Python module engine_parts: parts of the engine for tests and bench/scale. Only an editable
// install builds the module. Its classes Operation and EngineError are reducer_client._engine's.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "python/conversions.h"

namespace ors::python {

NB_MODULE(engine_parts, m) {
  nb::set_leak_warnings(false);  // a failed test keeps objects until the exit
  use_engine_error(nb::module_::import_("reducer_client._engine").attr("EngineError"));
  bind_codec(m);
  bind_handshake(m);
  bind_state(m);
}

}  // namespace ors::python
