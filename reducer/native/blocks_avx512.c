/* The loops over blocks for AVX-512 F, BW, DQ and VL. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                             \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define LEVEL avx512
#include "blocks.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int rs_nothing_here;
#endif
