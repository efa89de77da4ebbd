// Releases the GIL for a scope.
#pragma once

#include <Python.h>
#include <unistd.h>

// Public since 3.13, private before; neither is in the stable ABI of 3.12, hence weak symbols.
extern "C" __attribute__((weak)) int Py_IsFinalizing(void);
extern "C" __attribute__((weak)) int _Py_IsFinalizing(void);

namespace ors::python {

// While the interpreter finalizes, CPython ends a thread that takes the GIL by a forced unwind,
// which noexcept C++ code turns into terminate(). A daemon thread that returns from a wait then
// blocks here until the process exits, as CPython itself does since 3.14.
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

  // True if this thread finalizes the interpreter: the thread has the GIL here, and during
  // finalization no other thread has it.
  const bool finalizes_;
  PyThreadState* const state_;
};

}  // namespace ors::python
