// A stretch of code without the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

// Public from 3.13 on, private before; in neither case part of the stable ABI of 3.12.
extern "C" __attribute__((weak)) int Py_IsFinalizing(void);
extern "C" __attribute__((weak)) int _Py_IsFinalizing(void);

namespace ors::python {

// While the interpreter ends, taking the GIL ends the thread by a forced unwind, which C++ code
// that may not throw turns into terminate(). A daemon thread that comes back from a wait then
// stays here instead, until the process is gone; so does CPython itself from 3.14 on.
class WithoutGil {
 public:
  WithoutGil() : finalizes_(finalizing()), state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    while (!finalizes_ && finalizing()) ::pause();
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  static bool finalizing() {
    if (Py_IsFinalizing != nullptr) return Py_IsFinalizing() != 0;
    return _Py_IsFinalizing != nullptr && _Py_IsFinalizing() != 0;
  }

  // A thread that has the GIL while the interpreter ends is the one that ends it.
  const bool finalizes_;
  PyThreadState* const state_;
};

}  // namespace ors::python
