// Holds the caller's arrays while an operation may use them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ors::python {

namespace nb = nanobind;

// A C-contiguous view of an object with the buffer protocol. Create and destroy it with the GIL
// held.
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
  std::unique_ptr<Pin> residual;
  std::unique_ptr<Pin> slices;
  std::unique_ptr<Pin> gate;

  void release() {  // what an operation uses until it is done
    for (auto* pin : {&source, &target, &slices, &gate}) pin->reset();
  }
};

}  // namespace ors::python
