#include "python/operation.h"

#include <utility>

#include "io/fork.h"
#include "python/conversions.h"

namespace ors::python {

PyOperation::PyOperation(OperationRef operation, std::shared_ptr<Pins> pins, bool may_block)
    : operation_(std::move(operation)),
      pins_(std::move(pins)),
      may_block_(may_block),
      generation_(fork_generation()) {}

PyOperation::~PyOperation() {
  if (forked()) new OperationRef(std::move(operation_));
}

bool PyOperation::forked() const { return may_block_ && fork_generation() != generation_; }

void PyOperation::release_if_done() {
  if (operation_->done()) pins_->release();
}

bool PyOperation::done() {
  release_if_done();
  return operation_->done();
}

nb::object PyOperation::error() {
  if (!operation_->done() || !operation_->failure()) return nb::none();
  return failure_tuple(*operation_->failure());
}

unsigned PyOperation::flags() const { return operation_->done() ? operation_->flags() : 0; }

nb::list PyOperation::sets() const {
  nb::list out;
  if (!operation_->done()) return out;
  for (const SumSet& set : operation_->sets()) out.append(nb::make_tuple(set.elements, set.epoch));
  return out;
}

nb::object PyOperation::culprit() const {
  if (!operation_->done() || operation_->culprit().rank == kNoRank) return nb::none();
  return nb::make_tuple(operation_->culprit().rank, operation_->culprit().chunk);
}

}  // namespace ors::python
