// The Python object of an operation.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "protocol/operation.h"
#include "python/pybuffer.h"

namespace ors::python {

// A forked child leaks the operation on purpose: a thread that does not exist in the child may hold
// its lock.
class PyOperation {
 public:
  PyOperation(OperationRef operation, std::shared_ptr<Pins> pins, bool may_block);
  ~PyOperation();
  PyOperation(const PyOperation&) = delete;
  PyOperation& operator=(const PyOperation&) = delete;

  bool done();
  nb::object error();
  uint64_t arrived() const { return operation_->arrived(); }
  unsigned flags() const;
  nb::object culprit() const;
  nb::list sets() const;
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

}  // namespace ors::python
