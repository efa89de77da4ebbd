/* CRC-32C (Castagnoli) for the kernels and the client's engine. */
#ifndef RS_CRC32C_H
#define RS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `value` is the CRC of the bytes before, 0 at the start. Thread-safe, but for rs_crc32c_use. */
uint32_t rs_crc32c(uint32_t value, const void* data, size_t length);

/* For tests. 0: the fastest way on this machine, 1: the next, ...; beyond the last way: the last.
 * Not to be called while another thread computes. */
void rs_crc32c_use(size_t rank);

#ifdef __cplusplus
}
#endif
#endif
