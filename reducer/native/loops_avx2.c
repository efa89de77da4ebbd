/* AVX2 and F16C: the compiler's flags are in CMakeLists.txt. */
#if defined(__x86_64__)
#define LEVEL avx2
#include "loops.inc"
#else
typedef int rs_nothing_here;
#endif
