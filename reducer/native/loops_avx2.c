/* The loops for AVX2 and F16C; CMakeLists.txt sets the compiler's flags. */
#if defined(__x86_64__)
#define LEVEL avx2
#include "loops.inc"
#else
typedef int rs_nothing_here;
#endif
