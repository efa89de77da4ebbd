/* The loops over blocks for AVX2. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define LEVEL avx2
#include "blocks.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int rs_nothing_here;
#endif
