/* The loops for AVX-512 F, BW, DQ and VL; CMakeLists.txt sets the compiler's flags. */
#if defined(__x86_64__)
#define LEVEL avx512
#include "loops.inc"
#else
typedef int rs_nothing_here;
#endif
