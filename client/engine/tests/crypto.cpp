// Tests SHA-256, HMAC and HKDF with the test cases of RFC 6234, RFC 4231 and RFC 5869.
#include <algorithm>
#include <iostream>
#include <string>

#include "check.h"
#include "crypto/hmac.h"

namespace {

std::string hex(std::string_view bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text.push_back(digits[(byte >> 4) & 15]);
    text.push_back(digits[byte & 15]);
  }
  return text;
}

std::string hash(const std::string& data, size_t step) {
  ors::Sha256 sha;
  for (size_t at = 0; at < data.size(); at += step) {
    sha.update(data.data() + at, std::min(step, data.size() - at));
  }
  const ors::Digest digest = sha.finish();
  return hex(ors::view(digest));
}

std::string mac(const std::string& key, const std::string& data) {
  const ors::Digest digest = ors::hmac_sha256(key, data);
  return hex(ors::view(digest));
}

std::string counting(int first, int last) {
  std::string bytes;
  for (int byte = first; byte <= last; ++byte) bytes.push_back(static_cast<char>(byte));
  return bytes;
}

// RFC 6234, section 8.5: TEST1, TEST2_1, TEST3, TEST4; and the empty input.
void check_sha256() {
  const std::string test4 = "0123456701234567012345670123456701234567012345670123456701234567";
  std::string ten;
  for (int i = 0; i < 10; ++i) ten += test4;
  for (const size_t step : {1u, 3u, 55u, 63u, 64u, 65u, 1000u}) {
    CHECK(hash("", step) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc", step) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", step) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash(ten, step) == "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5");
  }
  CHECK(hash(std::string(1'000'000, 'a'), 777) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, test cases 1, 2, 3, 4, 6 and 7.
void check_hmac() {
  CHECK(mac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(mac(counting(1, 25), std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac(std::string(131, '\xaa'),
            "This is a test using a larger than block-size key and a larger than block-size data. "
            "The key needs to be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// RFC 5869, test cases 1 and 3: the first 32 of their 42 bytes.
void check_hkdf() {
  const std::string key(22, '\x0b');
  const ors::Digest first = ors::hkdf_extract(counting(0, 12), key);
  CHECK(hex(ors::view(first)) ==
        "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  CHECK(hex(ors::view(ors::hkdf_expand(ors::view(first), counting(0xf0, 0xf9)))) ==
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  const ors::Digest third = ors::hkdf_extract("", key);
  CHECK(hex(ors::view(third)) ==
        "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
  CHECK(hex(ors::view(ors::hkdf_expand(ors::view(third), ""))) ==
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

void check_secrets() {
  CHECK(ors::equal_in_constant_time("", ""));
  CHECK(ors::equal_in_constant_time("abc", "abc"));
  CHECK(!ors::equal_in_constant_time("abc", "abd"));
  CHECK(!ors::equal_in_constant_time("abc", "ab"));
  ors::Digest digest{};
  digest.fill(7);
  ors::Secret secret(std::move(digest));
  CHECK(digest == ors::Digest{});
  CHECK(secret && secret.bytes() == std::string(32, '\7'));
  ors::Secret other(std::move(secret));
  CHECK(!secret && secret.bytes() == std::string(32, '\0'));
  other.clear();
  CHECK(!other && other.bytes() == std::string(32, '\0'));
}

}  // namespace

int main() {
  check_sha256();
  check_hmac();
  check_hkdf();
  check_secrets();
  std::cout << "SHA-256, HMAC and HKDF are those of the RFCs\n";
}
