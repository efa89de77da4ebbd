// Bindings of the worker's side of the psk handshake. Tests run it against the lane's side in
// Python.
#include <nanobind/stl/string.h>

#include <cstring>

#include "bindings.h"
#include "crypto/handshake.h"
#include "python/conversions.h"
#include "python/pybuffer.h"

namespace ors::python {
namespace {

std::string_view text(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::bytes bytes_of(std::string_view view) { return nb::bytes(view.data(), view.size()); }

void make_handshake(Handshake* self, nb::bytes master, const std::string& job, uint16_t lane,
                    nb::bytes nonce) {
  if (master.size() < kMinMasterBytes || master.size() > kMaxMasterBytes || job.empty() ||
      job.size() > kMaxJobBytes || nonce.size() != kNonceSize) {
    throw nb::value_error("expected a key of 16 to 1024 bytes, a job of 1 to 128, a nonce of 32");
  }
  new (self) Handshake(job_key(text(master), job), job, lane, text(nonce), "the lane");
}

nb::bytes take_answer(Handshake& self, nb::bytes bytes) {
  if (auto failure = self.received(text(bytes))) raise(*failure);
  return bytes_of(self.proof());
}

}  // namespace

void bind_handshake(nb::module_& m) {
  nb::class_<Handshake>(m, "Handshake")
      .def("__init__", &make_handshake, nb::arg("master"), nb::arg("job"), nb::arg("lane"),
           nb::arg("nonce"))
      .def_prop_ro("opening", [](const Handshake& self) { return bytes_of(self.opening()); })
      .def_prop_ro("wanted", &Handshake::wanted)
      .def("received", &take_answer, nb::arg("data"));
  m.def("hmac_sha256", [](nb::bytes key, nb::bytes data) {
    return bytes_of(view(hmac_sha256(text(key), text(data))));
  });
  m.def("sha256", [](nb::bytes data) {
    Sha256 hash;
    hash.update(data.c_str(), data.size());
    return bytes_of(view(hash.finish()));
  });
}

}  // namespace ors::python
