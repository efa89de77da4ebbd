// Binds the kernels for Python. Checks every buffer before a kernel reads or writes it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;

namespace {

// For less work than this, releasing and acquiring the GIL costs more than the work.
constexpr std::size_t kWorthTheGil = 256 << 10;

// Releases the GIL for the lifetime of the object if the work is on at least kWorthTheGil bytes.
class MaybeNoGil {
 public:
  explicit MaybeNoGil(std::size_t bytes) {
    if (bytes >= kWorthTheGil) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

// Holds the buffer of a Python object. Construct and destroy with the GIL held.
// `index` is the index in a list of parts, for the text of errors; -1 if there is no list.
class Bytes {
 public:
  Bytes(const char* name, nb::handle object, bool writable, int index = -1)
      : name_(name), index_(index) {
    if (!PyObject_CheckBuffer(object.ptr())) {
      throw nb::type_error(
          (this->name() + ": expected an object with the buffer protocol").c_str());
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) {
      PyErr_Clear();
      const char* kind = writable ? "writable C-contiguous" : "C-contiguous";
      throw nb::buffer_error((this->name() + ": expected a " + kind + " buffer").c_str());
    }
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(Bytes&& other) noexcept : name_(other.name_), index_(other.index_), view_(other.view_) {
    other.view_.obj = nullptr;  // PyBuffer_Release of `other` then does nothing
  }
  Bytes& operator=(Bytes&&) = delete;

  std::string name() const {
    return index_ < 0 ? std::string(name_) : name_ + ("[" + std::to_string(index_) + "]");
  }
  void* data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

  // Cuts the view to the first `needed` bytes; throws if there are fewer.
  void require(std::size_t needed) {
    if (size() < needed) {
      const auto text = name() + ": expected at least " + std::to_string(needed) + " bytes, got " +
                        std::to_string(size());
      throw nb::value_error(text.c_str());
    }
    view_.len = static_cast<Py_ssize_t>(needed);
  }

  bool overlaps(const Bytes& other) const {
    const auto a = reinterpret_cast<std::uintptr_t>(data());
    const auto b = reinterpret_cast<std::uintptr_t>(other.data());
    return a < b + other.size() && b < a + size();
  }

 private:
  const char* name_;
  int index_;
  Py_buffer view_{};
};

[[noreturn]] void fail(const std::string& text) { throw nb::value_error(text.c_str()); }

void require_kernel(int op, int dtype) {
  if (rs_acc_item_size(op, dtype) != 0) {
    return;
  }
  if (rs_acc_item_size(RS_SUM, dtype) == 0) {
    fail("no kernel for dtype " + std::to_string(dtype) + ": expected a DType number, 1 to 18");
  }
  if (rs_acc_item_size(op, RS_INT8) != 0 && rs_block_format(dtype) >= 0) {
    fail("no kernel for op " + std::to_string(op) + " of dtype " + std::to_string(dtype) +
         ": blocks have only sum and mean");
  }
  if (rs_acc_item_size(op, RS_INT8) != 0) {
    fail("no kernel for op " + std::to_string(op) + " of dtype " + std::to_string(dtype) +
         ": a bitwise op expects an integer dtype");
  }
  fail("no kernel for op " + std::to_string(op) + ": expected a ReduceOp number that reduces");
}

void require_16_bit(const char* name, int dtype) {
  if (dtype != RS_FLOAT16 && dtype != RS_BFLOAT16) {
    fail(std::string(name) + ": expected dtype 3 (float16) or 4 (bfloat16), got " +
         std::to_string(dtype));
  }
}

// Returns `count`. No element has more than 8 bytes.
std::size_t checked(std::int64_t count) {
  if (count < 0) {
    fail("count must not be negative, got " + std::to_string(count));
  }
  if (count > std::int64_t{PTRDIFF_MAX} / 8) {
    fail("count is beyond any memory: " + std::to_string(count));
  }
  return static_cast<std::size_t>(count);
}

std::size_t checked(std::int64_t count, std::size_t item_size) {
  return checked(count) * item_size;
}

// The buffers of a sequence of Python objects.
class ManyBytes {
 public:
  ManyBytes(const char* name, nb::handle objects, std::size_t needed, bool writable) {
    const Py_ssize_t hint = PyObject_LengthHint(objects.ptr(), 0);
    if (hint < 0) throw nb::python_error();
    const auto expected = static_cast<std::size_t>(hint);
    bytes_.reserve(expected);
    pointers_.reserve(expected);
    for (nb::handle object : objects) {
      auto& bytes = bytes_.emplace_back(name, object, writable, static_cast<int>(bytes_.size()));
      bytes.require(needed);
      pointers_.push_back(bytes.data());
    }
  }
  const std::vector<Bytes>& all() const { return bytes_; }
  void* const* pointers() const { return pointers_.data(); }
  std::size_t size() const { return pointers_.size(); }

 private:
  std::vector<Bytes> bytes_;
  std::vector<void*> pointers_;
};

ManyBytes read_only_parts(nb::handle parts, std::size_t needed) {
  return {"parts", parts, needed, /*writable=*/false};
}

bool begins_in_place(int op, int dtype, bool first, const Bytes& total, const ManyBytes& sources) {
  return first && sources.size() > 1 && sources.all().front().data() == total.data() &&
         rs_acc_item_size(op, dtype) == rs_part_bytes(dtype, 1);
}

unsigned fold(int op, int dtype, std::int64_t count, nb::handle acc, nb::handle parts, bool first) {
  require_kernel(op, dtype);
  Bytes total("acc", acc, /*writable=*/true);
  total.require(checked(count, rs_acc_item_size(op, dtype)));
  const ManyBytes sources = read_only_parts(parts, rs_part_bytes(dtype, checked(count)));
  if (first && sources.size() == 0) {
    fail("fold: nothing to begin from: expected a part with first=True, got none");
  }
  const bool in_place = begins_in_place(op, dtype, first, total, sources);
  for (const Bytes& source : sources.all()) {
    const bool is_acc = in_place && &source == &sources.all().front();
    if (!is_acc && total.overlaps(source)) {
      fail("fold: acc overlaps " + source.name());
    }
  }
  const MaybeNoGil nogil(total.size() * sources.size());
  return rs_fold(op, dtype, static_cast<std::size_t>(count), total.data(), sources.pointers(),
                 sources.size(), first);
}

void require_apart(const Bytes& target, const Bytes& source) {
  if (target.overlaps(source) && target.data() != source.data()) {
    fail("finish: out overlaps " + source.name() + ", but begins at another address");
  }
}

unsigned finish(int op, int dtype, std::int64_t count, std::int64_t world, nb::handle acc,
                nb::handle parts, nb::handle out) {
  require_kernel(op, dtype);
  std::optional<Bytes> total;
  if (!acc.is_none()) {
    total.emplace("acc", acc, /*writable=*/false);
    total->require(checked(count, rs_acc_item_size(op, dtype)));
  }
  const std::size_t size = rs_result_bytes(dtype, checked(count));
  const ManyBytes sources = read_only_parts(parts, rs_part_bytes(dtype, checked(count)));
  if (!total && sources.size() == 0) {
    fail("finish: nothing to begin from: expected acc or a part, got neither");
  }
  if (world < 1) {
    fail("finish: world must be at least 1, got " + std::to_string(world));
  }
  Bytes target("out", out, /*writable=*/true);
  target.require(size);
  if (total) {
    require_apart(target, *total);
  }
  for (const Bytes& source : sources.all()) {
    if (dtype >= RS_INT8_BLOCKS_TO_BFLOAT16 && target.overlaps(source)) {
      fail("finish: out overlaps " + source.name() + ", which is shorter than out");
    }
    require_apart(target, source);
  }
  const MaybeNoGil nogil(size * sources.size());
  return rs_finish(op, dtype, static_cast<std::size_t>(count), static_cast<std::uint64_t>(world),
                   total ? total->data() : nullptr, sources.pointers(), sources.size(),
                   target.data());
}

struct Cast {
  Cast(const char* name, int dtype, std::int64_t count, nb::handle from, std::size_t from_size,
       nb::handle to, std::size_t to_size)
      : source("source", from, /*writable=*/false), out("out", to, /*writable=*/true) {
    require_16_bit(name, dtype);
    source.require(checked(count, from_size));
    out.require(checked(count, to_size));
    if (source.overlaps(out)) {
      fail(std::string(name) + ": source overlaps out");
    }
  }
  Bytes source, out;
};

unsigned narrow(int dtype, std::int64_t count, nb::handle source, nb::handle out) {
  const Cast cast("narrow", dtype, count, source, 4, out, 2);
  const MaybeNoGil nogil(cast.source.size());
  return rs_narrow(dtype, static_cast<std::size_t>(count), cast.source.data(), cast.out.data());
}

void widen(int dtype, std::int64_t count, nb::handle source, nb::handle out) {
  const Cast cast("widen", dtype, count, source, 2, out, 4);
  const MaybeNoGil nogil(cast.source.size());
  rs_widen(dtype, static_cast<std::size_t>(count), cast.source.data(), cast.out.data());
}

int checked_format(const char* name, int dtype) {
  const int format = rs_block_format(dtype);
  if (format < 0) {
    fail(std::string(name) + ": expected a dtype of blocks, 13 to 18, got " +
         std::to_string(dtype));
  }
  return format;
}

void require_no_overlap(const char* name, const Bytes& one, const Bytes& other) {
  if (one.overlaps(other)) {
    fail(std::string(name) + ": " + other.name() + " overlaps " + one.name());
  }
}

unsigned quantise(int dtype, std::int64_t count, nb::handle source, nb::handle out,
                  nb::handle residual, std::optional<std::uint64_t> seed) {
  const int format = checked_format("quantise", dtype);
  const std::size_t size = checked(count, sizeof(float));
  Bytes from("source", source, /*writable=*/false);
  from.require(size);
  Bytes to("out", out, /*writable=*/true);
  to.require(rs_blocks_bytes(format, checked(count)));
  require_no_overlap("quantise", from, to);
  std::optional<Bytes> error;
  if (!residual.is_none()) {
    error.emplace("residual", residual, /*writable=*/true);
    error->require(size);
    require_no_overlap("quantise", from, *error);
    require_no_overlap("quantise", to, *error);
  }
  const MaybeNoGil nogil(size);
  const unsigned not_finite = rs_quantise(
      format, checked(count), static_cast<const float*>(from.data()),
      error ? static_cast<float*>(error->data()) : nullptr, seed ? &*seed : nullptr, to.data());
  return not_finite != 0 ? RS_NONFINITE : 0;
}

void dequantise(int dtype, std::int64_t count, nb::handle blocks, nb::handle out) {
  const int format = checked_format("dequantise", dtype);
  const std::size_t size = checked(count, sizeof(float));
  Bytes from("blocks", blocks, /*writable=*/false);
  from.require(rs_blocks_bytes(format, checked(count)));
  Bytes to("out", out, /*writable=*/true);
  to.require(size);
  require_no_overlap("dequantise", from, to);
  const MaybeNoGil nogil(size);
  rs_dequantise(format, checked(count), from.data(), static_cast<float*>(to.data()));
}

std::vector<float> checked_scalars(int rule, const std::vector<double>& scalars) {
  const int expected = rs_scalar_count(rule);
  if (scalars.size() != static_cast<std::size_t>(expected)) {
    fail("apply: rule " + std::to_string(rule) + " has " + std::to_string(expected) +
         " scalars, got " + std::to_string(scalars.size()));
  }
  std::vector<float> rounded;
  for (const double scalar : scalars) {
    rounded.push_back(static_cast<float>(scalar));
    if (!std::isfinite(rounded.back())) {
      fail("apply: scalars[" + std::to_string(rounded.size() - 1) + "] is no finite float32");
    }
  }
  return rounded;
}

unsigned apply(int rule, std::int64_t count, nb::handle parameters, nb::handle gradient,
               nb::handle slots, const std::vector<double>& scalars) {
  if (rs_slot_count(rule) < 0) {
    fail("no kernel for rule " + std::to_string(rule) + ": expected a Rule number, 1 to 5");
  }
  const std::vector<float> numbers = checked_scalars(rule, scalars);
  const std::size_t size = checked(count, sizeof(float));
  Bytes target("parameters", parameters, /*writable=*/true);
  target.require(size);
  Bytes source("gradient", gradient, /*writable=*/false);
  source.require(size);
  const ManyBytes state("slots", slots, size, /*writable=*/true);
  if (state.size() != static_cast<std::size_t>(rs_slot_count(rule))) {
    fail("apply: rule " + std::to_string(rule) + " has " + std::to_string(rs_slot_count(rule)) +
         " slots, got " + std::to_string(state.size()));
  }
  require_no_overlap("apply", target, source);
  for (const Bytes& slot : state.all()) {
    require_no_overlap("apply", target, slot);
    require_no_overlap("apply", source, slot);
  }
  if (state.size() == 2) {
    require_no_overlap("apply", state.all()[0], state.all()[1]);
  }
  const MaybeNoGil nogil(size * (2 + state.size()));
  return rs_apply(rule, static_cast<std::size_t>(count), target.data(), source.data(),
                  state.pointers(), numbers.data());
}

bool within(std::int64_t count, nb::handle values, double limit) {
  const std::size_t size = checked(count, sizeof(float));
  Bytes source("values", values, /*writable=*/false);
  source.require(size);
  if (!(limit > 0)) {
    fail("within: limit must be above 0, got " + std::to_string(limit));
  }
  const MaybeNoGil nogil(size);
  return rs_within(static_cast<std::size_t>(count), source.data(), static_cast<float>(limit)) != 0;
}

std::uint32_t crc32c(nb::handle data, std::uint32_t value) {
  const Bytes bytes("data", data, /*writable=*/false);
  const MaybeNoGil nogil(bytes.size());
  return rs_crc32c(value, bytes.data(), bytes.size());
}

std::size_t acc_itemsize(int op, int dtype) {
  require_kernel(op, dtype);
  return rs_acc_item_size(op, dtype);
}

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (std::size_t i = 0; rs_level(i) != nullptr; ++i) {
    names.emplace_back(rs_level(i));
  }
  return names;
}

void use_level(const std::string& name) {
  if (rs_use_level(name.c_str()) != 0) {
    fail("no level " + name + " on this machine");
  }
}

}  // namespace

NB_MODULE(_native, module) {
  using namespace nb::literals;
  module.attr("NAME") = "native";
  module.def("crc32c", crc32c, "data"_a, "value"_a = 0);
  module.def("acc_itemsize", acc_itemsize, "op"_a, "dtype"_a);
  module.def("fold", fold, "op"_a, "dtype"_a, "count"_a, "acc"_a, "parts"_a, "first"_a);
  module.def("finish", finish, "op"_a, "dtype"_a, "count"_a, "world"_a, "acc"_a.none(), "parts"_a,
             "out"_a);
  module.def("narrow", narrow, "dtype"_a, "count"_a, "source"_a, "out"_a);
  module.def("widen", widen, "dtype"_a, "count"_a, "source"_a, "out"_a);
  module.def("quantise", quantise, "dtype"_a, "count"_a, "source"_a, "out"_a,
             "residual"_a.none() = nb::none(), "seed"_a.none() = nb::none());
  module.def("dequantise", dequantise, "dtype"_a, "count"_a, "blocks"_a, "out"_a);
  module.def("blocks_seed", rs_blocks_seed, "key"_a, "round"_a, "chunk"_a, "rank"_a);
  module.def("apply", apply, "rule"_a, "count"_a, "parameters"_a, "gradient"_a, "slots"_a,
             "scalars"_a);
  module.def("within", within, "count"_a, "values"_a, "limit"_a);
  module.def("levels", levels);
  module.def("use_level", use_level, "name"_a);
}
