#include "python/conversions.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>

namespace ors::python {
namespace {

PyObject* engine_error = nullptr;

}  // namespace

void add_engine_error(nb::module_& m) {
  engine_error = PyErr_NewExceptionWithDoc("reducer_client._engine.EngineError",
                                           "args: (code, message, rank, reason, key, round)",
                                           nullptr, nullptr);
  m.attr("EngineError") = nb::borrow(engine_error);
}

void use_engine_error(nb::handle type) { engine_error = type.inc_ref().ptr(); }

void raise(const Failure& failure) {
  PyErr_SetObject(engine_error, failure_tuple(failure).ptr());
  throw nb::python_error();
}

nb::object failure_tuple(const Failure& f) {
  return nb::make_tuple(static_cast<uint32_t>(f.code), f.message, f.rank, f.reason, f.key, f.round);
}

Failure forked_failure() {
  return {ErrorCode::kUnavailable,
          "this process was forked after connect(): call connect() again in the child", "forked"};
}

ChunkTable chunk_table_of(const std::vector<std::pair<uint64_t, uint64_t>>& rows) {
  ChunkTable table;
  for (const auto& [least, bytes] : rows) {
    table.push_back({least, static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX))});
  }
  return table;
}

Submission make_submission(int collective, int op, int dtype, bool wide, const std::string& key,
                           int64_t root, uint64_t count, nb::object source, nb::object target,
                           bool notify, int32_t priority, nb::object residual, bool stochastic,
                           Pins* pins) {
  const auto small = [](int64_t value, int64_t most, const char* name) {
    if (value < 0 || value > most) throw nb::value_error(name);
    return value;
  };
  Submission s;
  s.descriptor.collective = static_cast<uint8_t>(small(collective, 255, "collective"));
  s.descriptor.op = static_cast<uint8_t>(small(op, 255, "op"));
  s.descriptor.dtype = static_cast<uint8_t>(small(dtype, 255, "dtype"));
  s.descriptor.wide = wide;
  s.descriptor.count = count;
  s.descriptor.root = static_cast<uint16_t>(small(root, 65'535, "root"));
  s.key = key;
  s.notify = notify;
  s.priority = priority;
  if (!source.is_none()) {
    pins->source = std::make_unique<Pin>(source, false);
    s.source = pins->source->data();
    s.source_bytes = pins->source->size();
  }
  if (!target.is_none()) {
    pins->target = std::make_unique<Pin>(target, true);
    s.target = pins->target->data();
    s.target_bytes = pins->target->size();
  }
  if (!residual.is_none()) {
    pins->residual = std::make_unique<Pin>(residual, true);
    s.residual = reinterpret_cast<float*>(pins->residual->data());
    s.residual_bytes = pins->residual->size();
  }
  s.stochastic = stochastic;
  return s;
}

std::atomic<uint32_t>* pin_word(nb::object word, std::unique_ptr<Pin>* pin) {
  if (word.is_none()) return nullptr;
  *pin = std::make_unique<Pin>(word, true);
  const auto address = reinterpret_cast<uintptr_t>((*pin)->data());
  if ((*pin)->size() != sizeof(uint32_t) || address % alignof(uint32_t) != 0) {
    throw nb::value_error("a word of a device: expected 4 aligned bytes");
  }
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<std::atomic<uint32_t>*>((*pin)->data());
}

nb::object to_python(const Value& value) {
  using Type = Value::Type;
  switch (value.type) {
    case Type::kNil:
      return nb::none();
    case Type::kBool:
      return nb::bool_(value.boolean);
    case Type::kInt:
      return nb::int_(value.integer);
    case Type::kUint:
      return nb::int_(value.natural);
    case Type::kFloat:
      return nb::float_(value.real);
    case Type::kStr:
      return nb::str(value.text.data(), value.text.size());
    case Type::kBin:
      return nb::bytes(value.text.data(), value.text.size());
    case Type::kList: {
      nb::list items;
      for (const Value& item : value.list) items.append(to_python(item));
      return items;
    }
    case Type::kMap: {
      nb::dict entries;
      for (const auto& [name, item] : value.map) {
        entries[nb::str(name.data(), name.size())] = to_python(item);
      }
      return entries;
    }
  }
  return nb::none();
}

nb::list losses_of(const Route& route) {
  nb::list out;
  for (const Loss& loss : route.lost) out.append(nb::make_tuple(loss.epoch, loss.rank));
  return out;
}

nb::list lost_ranks(const std::vector<LostRank>& lost) {
  nb::list out;
  for (const LostRank& each : lost) {
    out.append(nb::make_tuple(each.rank, each.reason, each.message));
  }
  return out;
}

Secret secret_of(const nb::bytes& key) {
  if (key.size() == 0) return Secret();
  Digest digest;
  if (key.size() != digest.size()) {
    const std::string got = std::to_string(key.size());
    throw nb::value_error(("expected a job key of 32 bytes, got " + got).c_str());
  }
  std::memcpy(digest.data(), key.c_str(), digest.size());
  return Secret(std::move(digest));
}

}  // namespace ors::python
