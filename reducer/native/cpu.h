/* The instruction sets that the processor has and that the system saves. The kernels do not ask
 * __builtin_cpu_supports: it takes its answers from the compiler's own library, and zig's library
 * answers no to every question. */
#ifndef RS_CPU_H
#define RS_CPU_H

#if defined(__x86_64__)
#include <cpuid.h>

enum {
  RS_CPU_SSE4_2 = 1,
  RS_CPU_AVX2 = 2,   /* with F16C */
  RS_CPU_AVX512 = 4, /* F, BW, DQ and VL */
  RS_CPU_VPCLMULQDQ = 8,
};

static inline int rs_all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

/* Register 0 of XCR: the registers that the system saves. */
static inline unsigned rs_saved_registers(void) {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static inline unsigned rs_cpu(void) {
  enum { YMM = 0x6, ZMM = 0xE6 }; /* in rs_saved_registers */
  unsigned eax, ebx, ecx, edx, ebx_7 = 0, ecx_7 = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
  __get_cpuid_count(7, 0, &eax, &ebx_7, &ecx_7, &edx);
  const unsigned saved = ecx & bit_OSXSAVE ? rs_saved_registers() : 0;
  const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  unsigned found = ecx & bit_SSE4_2 ? RS_CPU_SSE4_2 : 0;
  if (rs_all(saved, YMM) && rs_all(ecx, bit_AVX | bit_F16C) && ebx_7 & bit_AVX2) {
    found |= RS_CPU_AVX2;
  }
  if (rs_all(saved, ZMM) && rs_all(ebx_7, avx512)) found |= RS_CPU_AVX512;
  if (rs_all(saved, YMM) && ecx_7 & bit_VPCLMULQDQ) found |= RS_CPU_VPCLMULQDQ;
  return found;
}

/* Whether the processor has all of a set of RS_CPU_... */
static inline int rs_cpu_has(unsigned set) { return rs_all(rs_cpu(), set); }
#endif

#endif
