// The caller's arrays, held for as long as an operation may touch them.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "crypto/hmac.h"
#include "protocol/state.h"

namespace ors::python {

namespace nb = nanobind;

// A C-contiguous view of an object with the buffer protocol. Create and destroy with the GIL.
class Pin {
 public:
  Pin(nb::handle object, bool writable) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() { PyBuffer_Release(&view_); }

  // An empty buffer may have no address, and an address means that the buffer was given.
  uint8_t* data() const {
    static uint8_t nothing = 0;
    return view_.buf != nullptr ? static_cast<uint8_t*>(view_.buf) : &nothing;
  }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

struct Pins {
  std::unique_ptr<Pin> source;
  std::unique_ptr<Pin> target;
};

// An operation as Python sees it. It leaves itself behind in a forked child, where the locks
// inside may be held by threads that do not exist there.
class PyOperation {
 public:
  PyOperation(OperationRef operation, std::shared_ptr<Pins> pins, bool may_block);
  ~PyOperation();
  PyOperation(const PyOperation&) = delete;
  PyOperation& operator=(const PyOperation&) = delete;

  bool done();
  nb::object error();
  unsigned flags() const;
  nb::object culprit() const;
  const std::string& key() const { return operation_->key(); }
  uint64_t round() const { return operation_->round(); }
  const OperationRef& ref() const { return operation_; }

 private:
  bool forked() const;
  void release_if_done();

  OperationRef operation_;
  std::shared_ptr<Pins> pins_;
  const bool may_block_;
  const int generation_;
};

// Raises EngineError with the six fields of the failure.
[[noreturn]] void raise(const Failure& failure);
nb::object failure_tuple(const Failure& failure);
Failure forked_failure();

ChunkTable chunk_table_of(const std::vector<std::pair<uint64_t, uint64_t>>& rows);

// Checks the arguments of a submit and pins its buffers; ValueError for what breaks a rule.
Submission make_submission(int collective, int op, int dtype, bool wide, const std::string& key,
                           int64_t root, uint64_t count, nb::object source, nb::object target,
                           bool notify, int32_t priority, Pins* pins);

nb::object to_python(const Value& value);

// A job's key, or none for no bytes; ValueError for another size.
Secret secret_of(const nb::bytes& key);

void bind_handshake(nb::module_& m);
void bind_codec(nb::module_& m);
void bind_state(nb::module_& m);

}  // namespace ors::python
