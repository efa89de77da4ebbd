// The kernels under sanitizers: every op, dtype, rule, level and tail length. Buffers have exactly
// the needed size and an odd address, so the sanitizer reports one byte too far. The results of
// each level must equal the baseline level's, and the CRC of all results must equal a constant: the
// bits are the same on every machine. tests/unit/kernels checks the values.
#include "kernels.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fp_mode.h"

namespace {

constexpr std::size_t kCounts[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 2047, 2048, 2049, 5000};
constexpr int kOps[] = {RS_SUM, RS_MEAN, RS_MIN, RS_MAX, RS_PROD, RS_BAND, RS_BOR, RS_BXOR};
constexpr std::size_t kParts = 3;
constexpr std::uint32_t kAllResults = 3'799'327'484;
constexpr std::uint32_t kAllBlocks = 3'383'547'951;
constexpr std::uint64_t kSeed = 16'965'997'001'879'974'558u;
constexpr std::uint32_t kAllSteps = 4'083'423'519;

void require(bool fine, const std::string& what) {
  if (!fine) {
    std::fprintf(stderr, "kernels_test: %s\n", what.c_str());
    std::exit(1);
  }
}

// Bytes at an odd address; the allocation ends with the last byte.
class Odd {
 public:
  explicit Odd(std::size_t size) : size_(size), memory_(new unsigned char[size + 1]) {
    std::memset(memory_.get(), 0, size + 1);
  }
  Odd(std::size_t size, std::mt19937_64& random) : Odd(size) {
    for (std::size_t i = 0; i < size; ++i) data()[i] = static_cast<unsigned char>(random());
  }
  unsigned char* data() const { return memory_.get() + 1; }
  std::size_t size() const { return size_; }
  bool operator==(const Odd& other) const {
    return size_ == other.size_ && (size_ == 0 || std::memcmp(data(), other.data(), size_) == 0);
  }

 private:
  std::size_t size_;
  std::unique_ptr<unsigned char[]> memory_;
};

struct Outcome {
  Odd whole, split;
  unsigned whole_flags, split_flags;
};

// The result of a call, with its part number counted from `begun` earlier parts on.
unsigned shifted(unsigned said, unsigned begun) {
  return said >> RS_PART_SHIFT ? said + (begun << RS_PART_SHIFT) : said;
}

// Combines the results of two calls on one chunk.
unsigned together(unsigned earlier, unsigned later) {
  const unsigned part = earlier >> RS_PART_SHIFT ? earlier : later;
  return ((earlier | later) & ((1u << RS_PART_SHIFT) - 1)) | part >> RS_PART_SHIFT << RS_PART_SHIFT;
}

Outcome compute(int op, int dtype, std::size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(op * 100 + dtype) * 10'000 + count);
  const std::size_t size = rs_part_bytes(dtype, count);
  std::vector<Odd> parts;
  const void* pointers[kParts];
  for (auto& pointer : pointers) pointer = parts.emplace_back(size, random).data();
  const std::size_t result = rs_result_bytes(dtype, count);
  Outcome outcome{Odd(result), Odd(result), 0, 0};
  outcome.whole_flags =
      rs_finish(op, dtype, count, kParts, nullptr, pointers, kParts, outcome.whole.data());
  const Odd acc(count * rs_acc_item_size(op, dtype));
  outcome.split_flags = rs_fold(op, dtype, count, acc.data(), pointers, 1, 1);
  const unsigned second = rs_fold(op, dtype, count, acc.data(), pointers + 1, 1, 0);
  const unsigned third =
      rs_finish(op, dtype, count, kParts, acc.data(), pointers + 2, 1, outcome.split.data());
  outcome.split_flags =
      together(together(outcome.split_flags, shifted(second, 1)), shifted(third, 2));
  return outcome;
}

void check_reductions(const std::vector<std::string>& levels) {
  std::uint32_t all = 0;
  for (int op : kOps) {
    for (int dtype = RS_FLOAT32; dtype <= RS_E3M0_BLOCKS_TO_BFLOAT16; ++dtype) {
      if (rs_acc_item_size(op, dtype) == 0) continue;  // such as bits of floats
      for (std::size_t count : kCounts) {
        rs_use_level("baseline");
        const Outcome expected = compute(op, dtype, count);
        all = rs_crc32c(all, expected.whole.data(), expected.whole.size());
        all = rs_crc32c(all, &expected.whole_flags, sizeof expected.whole_flags);
        for (const auto& level : levels) {
          rs_use_level(level.c_str());
          const Outcome got = compute(op, dtype, count);
          const std::string name = level + ", op " + std::to_string(op) + ", dtype " +
                                   std::to_string(dtype) + ", count " + std::to_string(count);
          require(got.whole == expected.whole, "another result: " + name);
          require(got.split == expected.whole, "the split changes the result: " + name);
          require(got.whole_flags == expected.whole_flags, "other flags: " + name);
          require(got.split_flags == expected.whole_flags, "the split changes flags: " + name);
        }
      }
    }
  }
  require(all == kAllResults, "other bits than on other machines: " + std::to_string(all));
}

// `count` float32 from 0.5 to 2, or from -2 to -0.5.
Odd numbers(std::size_t count, std::mt19937_64& random) {
  Odd made(4 * count, random);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, made.data() + 4 * i, 4);
    bits = (bits & 0x80FFFFFF) + 0x3F000000;
    std::memcpy(made.data() + 4 * i, &bits, 4);
  }
  return made;
}

// All arrays after two steps of a rule, one after another. The scalars are ordinary, but those of
// no optimizer.
std::vector<Odd> take_steps(int rule, std::size_t count) {
  constexpr float kScalars[] = {0.1f, 0.01f, 0.3f, 1e-3f, 0.2f, 0.05f};
  std::mt19937_64 random(static_cast<std::uint64_t>(rule) * 10'000 + count);
  std::vector<Odd> arrays;
  for (int i = 0; i < 2 + rs_slot_count(rule); ++i) arrays.push_back(numbers(count, random));
  std::vector<void*> slots;
  for (std::size_t i = 2; i < arrays.size(); ++i) {
    slots.push_back(arrays[i].data());
    for (std::size_t at = 3; at < arrays[i].size(); at += 4) arrays[i].data()[at] &= 0x7F;
  }
  for (int step = 0; step < 2; ++step) {
    const unsigned flags =
        rs_apply(rule, count, arrays[0].data(), arrays[1].data(), slots.data(), kScalars);
    require(flags == 0, "a step of finite numbers is not finite: rule " + std::to_string(rule));
  }
  return arrays;
}

void check_steps(const std::vector<std::string>& levels) {
  require(rs_slot_count(0) == -1 && rs_scalar_count(RS_ADAM + 1) == -1, "a rule that is none");
  std::uint32_t all = 0;
  for (int rule = RS_REPLACE; rule <= RS_ADAM; ++rule) {
    for (std::size_t count : kCounts) {
      rs_use_level("baseline");
      const auto expected = take_steps(rule, count);
      for (const Odd& array : expected) all = rs_crc32c(all, array.data(), array.size());
      for (const auto& level : levels) {
        rs_use_level(level.c_str());
        require(take_steps(rule, count) == expected, "another step: " + level + ", rule " +
                                                         std::to_string(rule) + ", count " +
                                                         std::to_string(count));
      }
    }
  }
  require(all == kAllSteps, "other steps than on other machines: " + std::to_string(all));
}

void check_casts(const std::vector<std::string>& levels) {
  for (int dtype : {RS_FLOAT16, RS_BFLOAT16}) {
    for (std::size_t count : kCounts) {
      std::mt19937_64 random(count);
      const Odd wide(4 * count, random);
      const Odd expected(2 * count);
      rs_use_level("baseline");
      rs_narrow(dtype, count, wide.data(), expected.data());
      for (const auto& level : levels) {
        rs_use_level(level.c_str());
        const Odd narrow(2 * count), back(4 * count), again(2 * count);
        rs_narrow(dtype, count, wide.data(), narrow.data());
        require(narrow == expected, "narrow differs: " + level);
        rs_widen(dtype, count, narrow.data(), back.data());
        rs_narrow(dtype, count, back.data(), again.data());
        require(again == narrow, "narrow does not undo widen: " + level);
      }
    }
  }
}

struct Quantised {
  Odd blocks, residual, values, sums;
  unsigned flags;
  bool operator==(const Quantised& other) const {
    return blocks == other.blocks && residual == other.residual && values == other.values &&
           sums == other.sums && flags == other.flags;
  }
};

// `wild`: float32 of any bits, so most blocks are not finite.
Quantised quantise(int format, std::size_t count, bool stochastic, bool wild) {
  std::mt19937_64 random(count);
  const Odd source = wild ? Odd(4 * count, random) : numbers(count, random);
  Odd blocks(rs_blocks_bytes(format, count)), values(4 * count);
  Odd residual = numbers(count, random), sums = numbers(count, random);
  const std::uint64_t seed = random();
  const auto floats = [](const Odd& bytes) {
    return static_cast<float*>(static_cast<void*>(bytes.data()));
  };
  unsigned flags = rs_quantise(format, count, floats(source), floats(residual),
                               stochastic ? &seed : nullptr, blocks.data());
  flags |= rs_dequantise(format, count, blocks.data(), floats(values)) << 1;
  flags |= rs_dequantise_add(format, count, blocks.data(), floats(sums)) << 2;
  return {std::move(blocks), std::move(residual), std::move(values), std::move(sums), flags};
}

void check_blocks(const std::vector<std::string>& levels) {
  std::uint32_t all = 0;
  for (std::size_t count : kCounts) {
    for (int variant = 0; variant < 12; ++variant) {
      const int format = variant % 3;
      const bool stochastic = variant / 3 % 2 == 1, wild = variant / 6 == 1;
      rs_use_level("baseline");
      const Quantised expected = quantise(format, count, stochastic, wild);
      require(wild || expected.flags == 0, "blocks of numbers are not finite");
      all = rs_crc32c(all, expected.blocks.data(), expected.blocks.size());
      if (!wild) all = rs_crc32c(all, expected.residual.data(), expected.residual.size());
      for (const auto& level : levels) {
        rs_use_level(level.c_str());
        require(quantise(format, count, stochastic, wild) == expected,
                "other blocks: " + level + ", format " + std::to_string(format) + ", count " +
                    std::to_string(count));
      }
    }
  }
  require(all == kAllBlocks, "other blocks than on other machines: " + std::to_string(all));
  require(rs_blocks_seed(1, 2, 3, 4) == kSeed,
          "another seed: " + std::to_string(rs_blocks_seed(1, 2, 3, 4)));
}

void check_crc(const std::vector<std::string>& levels) {
  require(rs_crc32c(0, "123456789", 9) == 0xE3069283, "the CRC's check value");
  std::mt19937_64 random(1);
  for (std::size_t size : {0, 1, 7, 8, 9, 76, 767, 768, 769, 12'287, 12'288, 12'289, 50'000}) {
    const Odd data(size, random);
    rs_use_level("baseline");
    const std::uint32_t expected = rs_crc32c(0, data.data(), size);
    for (const auto& level : levels) {
      rs_use_level(level.c_str());
      require(rs_crc32c(0, data.data(), size) == expected, "the CRC differs: " + level);
    }
  }
}

// The mode of a thread in a process that has loaded a library linked with -ffast-math.
void check_flush_to_zero() {
#if defined(__x86_64__)
  constexpr rs_fp_mode kFlush = 0x9FC0;
#elif defined(__aarch64__)
  constexpr rs_fp_mode kFlush = 1 << 24;
#else
  constexpr rs_fp_mode kFlush = RS_FP_DEFAULT;
#endif
  const float denormal = 1e-40f;
  const void* const parts[] = {&denormal, &denormal};
  float sum = 0, parameter = denormal;
  const float zeros[3] = {0, 0, 0};
  const rs_fp_mode before = rs_fp_get();
  rs_fp_set(kFlush);
  rs_finish(RS_SUM, RS_FLOAT32, 1, 2, nullptr, parts, 2, &sum);
  rs_apply(RS_SGD, 1, &parameter, zeros, nullptr, zeros);
  float residual = denormal;
  unsigned char block[5];
  rs_quantise(RS_BLOCKS_INT8, 1, &denormal, &residual, nullptr, block);
  const bool mode_is_kept = rs_fp_get() == kFlush;
  rs_fp_set(before);
  require(mode_is_kept, "the caller's floating-point mode was changed");
  require(sum == 2 * denormal, "a denormal was flushed to zero");
  require(parameter == denormal, "a denormal parameter was flushed to zero");
  require(residual == 2 * denormal, "a denormal residual was flushed to zero");
}

void check_threads() {
  const Outcome expected = compute(RS_SUM, RS_FLOAT16, 5000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&expected] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        require(compute(RS_SUM, RS_FLOAT16, 5000).whole == expected.whole, "threads disturb");
        require(rs_crc32c(0, "123456789", 9) == 0xE3069283, "threads disturb the CRC");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main() {
  std::vector<std::string> levels;
  for (std::size_t i = 0; rs_level(i) != nullptr; ++i) levels.emplace_back(rs_level(i));
  check_reductions(levels);
  check_steps(levels);
  check_casts(levels);
  check_blocks(levels);
  check_crc(levels);
  check_flush_to_zero();
  rs_use_level(levels.front().c_str());
  check_threads();
  std::puts("kernels_test: fine");
}
