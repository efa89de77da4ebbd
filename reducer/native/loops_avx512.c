/* AVX-512 F, BW, DQ and VL: the compiler's flags are in CMakeLists.txt. */
#if defined(__x86_64__)
#define LEVEL avx512
#include "loops.inc"
#else
typedef int rs_nothing_here;
#endif
