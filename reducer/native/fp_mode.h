/* The kernels compute with denormals and round to nearest even in any floating-point mode of the
 * calling thread. For instance, a library built with -ffast-math makes a thread flush denormals. */
#ifndef RS_IEEE_H
#define RS_IEEE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef uint32_t rs_fp_mode;
enum { RS_FP_DEFAULT = 0x1F80 }; /* every exception masked, no flush, no denormals-are-zero */
static inline rs_fp_mode rs_fp_get(void) { return _mm_getcsr(); }
static inline void rs_fp_set(rs_fp_mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
typedef uint64_t rs_fp_mode;
enum { RS_FP_DEFAULT = 0 };
static inline rs_fp_mode rs_fp_get(void) {
  rs_fp_mode mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
static inline void rs_fp_set(rs_fp_mode mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
typedef int rs_fp_mode;
enum { RS_FP_DEFAULT = 0 };
static inline rs_fp_mode rs_fp_get(void) { return 0; }
static inline void rs_fp_set(rs_fp_mode mode) { (void)mode; }
#endif

static inline rs_fp_mode rs_ieee_begin(void) {
  const rs_fp_mode before = rs_fp_get();
  rs_fp_set(RS_FP_DEFAULT);
  return before;
}

#endif
