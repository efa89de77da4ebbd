// Bindings of the engine's pure functions.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "codec/cast.h"
#include "codec/msgpack.h"
#include "protocol/chunk_owners.h"
#include "protocol/chunk_plan.h"
#include "python/conversions.h"
#include "python/pybuffer.h"

namespace ors::python {
namespace {

Value from_python(nb::handle object) {
  if (object.is_none()) return Value();
  if (PyBool_Check(object.ptr())) {
    Value value;
    value.type = Value::Type::kBool;
    value.boolean = object.ptr() == Py_True;
    return value;
  }
  if (nb::isinstance<nb::int_>(object)) {
    uint64_t natural = 0;
    if (nb::try_cast(object, natural)) return Value::of(natural);
    return Value::of_int(nb::cast<int64_t>(object));
  }
  if (nb::isinstance<nb::float_>(object)) {
    Value value;
    value.type = Value::Type::kFloat;
    value.real = nb::cast<double>(object);
    return value;
  }
  if (nb::isinstance<nb::str>(object)) return Value::str(nb::cast<std::string>(object));
  if (nb::isinstance<nb::bytes>(object)) {
    const auto bytes = nb::borrow<nb::bytes>(object);
    return Value::bin({bytes.c_str(), bytes.size()});
  }
  if (nb::isinstance<nb::dict>(object)) {
    Value value = Value::of_map();
    for (const auto& [name, item] : nb::borrow<nb::dict>(object)) {
      value.map.emplace_back(nb::cast<std::string>(name), from_python(item));
    }
    return value;
  }
  Value value = Value::of_list();
  for (nb::handle item : nb::borrow<nb::list>(object)) value.list.push_back(from_python(item));
  return value;
}

nb::object decode(nb::bytes data) {
  Value value;
  if (const char* wrong = msgpack_decode({data.c_str(), data.size()}, &value)) {
    throw nb::value_error(wrong);
  }
  return to_python(value);
}

nb::bytes encode(nb::object object) {
  std::string out;
  msgpack_encode(from_python(object), &out);
  return nb::bytes(out.data(), out.size());
}

// (owner slot, owner lane, vector, first element in the vector, elements, sends bytes, gets bytes)
nb::list plan(int collective, int dtype, uint64_t count, uint32_t world, uint32_t rank,
              const std::vector<std::pair<uint64_t, uint64_t>>& table, const std::string& key,
              const std::vector<uint32_t>& lanes_by_slot, uint16_t root,
              const std::vector<uint32_t>& live, const std::vector<uint32_t>& weights) {
  Descriptor d;
  d.collective = static_cast<uint8_t>(collective);
  d.dtype = static_cast<uint8_t>(dtype);
  d.count = count;
  d.root = root;
  const ChunkTable rows = chunk_table_of(table);
  if (const char* wrong = check_chunk_table(rows)) throw nb::value_error(wrong);
  if (!contribution_layout(d.dtype).known() || world == 0 || lanes_by_slot.empty()) {
    throw nb::value_error("dtype, world or reducers is out of range");
  }
  std::string why;
  const auto cut = ChunkPlan::make(d, world, rows, &why);
  if (!cut) throw nb::value_error(why.c_str());
  Route route = Route::first(lanes_by_slot);
  if (!live.empty()) route.live = live;
  if (const char* wrong = check_route(route)) throw nb::value_error(wrong);
  const Owners owners(route, weights);
  nb::list out;
  for (uint32_t chunk = 0; chunk < cut->chunks(); ++chunk) {
    const Place place = owners.place(key_id(key), chunk);
    const Range range = cut->range(chunk);
    out.append(nb::make_tuple(place.slot, place.lane, range.vector, range.offset, range.elements,
                              sends_bytes(d, *cut, chunk, rank), gets_bytes(d, *cut, chunk, rank)));
  }
  return out;
}

void check_cast(int dtype, const Pin& narrow, const Pin& wide) {
  if (dtype != kFloat16 && dtype != kBFloat16) throw nb::value_error("expected dtype 3 or 4");
  if (wide.size() != 2 * narrow.size() || wide.size() % 4 != 0) {
    throw nb::value_error("the float32 buffer has twice the bytes of the 16-bit one");
  }
}

void cast_narrow(int dtype, nb::object from, nb::object to) {
  const Pin wide(from, false);
  const Pin narrow(to, true);
  check_cast(dtype, narrow, wide);
  narrow_crc32c(static_cast<uint8_t>(dtype), reinterpret_cast<const float*>(wide.data()),
                narrow.data(), narrow.size() / 2);
}

void cast_widen(int dtype, nb::object from, nb::object to) {
  const Pin narrow(from, false);
  const Pin wide(to, true);
  check_cast(dtype, narrow, wide);
  widen(static_cast<uint8_t>(dtype), narrow.data(), reinterpret_cast<float*>(wide.data()),
        narrow.size() / 2);
}

}  // namespace

void bind_codec(nb::module_& m) {
  m.def("key_id", [](const std::string& name) { return key_id(name); }, nb::arg("name"));
  m.def("msgpack_encode", &encode, nb::arg("value").none());
  m.def("msgpack_decode", &decode, nb::arg("data"));
  m.def("plan", &plan, nb::arg("collective"), nb::arg("dtype"), nb::arg("count"), nb::arg("world"),
        nb::arg("rank"), nb::arg("chunk_table"), nb::arg("key"), nb::arg("lanes_by_slot"),
        nb::arg("root") = 0, nb::arg("live") = std::vector<uint32_t>(),
        nb::arg("weights") = std::vector<uint32_t>());
  m.def("narrow", &cast_narrow, nb::arg("dtype"), nb::arg("source"), nb::arg("target"));
  m.def("widen", &cast_widen, nb::arg("dtype"), nb::arg("source"), nb::arg("target"));
}

}  // namespace ors::python
