/* The protocol of the reference programs: a header of 12 bytes, then the floats of one chunk, in
 * the byte order of the machine, since both ends run on one machine. */
#ifndef REFERENCE_WIRE_H
#define REFERENCE_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct header {
  uint32_t chunk;  /* counted on over all rounds */
  uint32_t length; /* bytes of payload */
  uint32_t crc;    /* CRC-32C of the payload; 0 in a run without CRC */
};

/* The CRC of data is computed in blocks of this many bytes, each right after the bytes were
 * written: a block and its source stay in an L1 cache of 32 KiB. */
enum { kBlockBytes = 12 << 10 };

/* Ends the program with a line on stderr, with the text of `errno` unless `errno` is 0. */
_Noreturn void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* Sets TCP_NODELAY, and the congestion control unless it is empty. */
void tune(int fd, const char* congestion);

/* The integer in `text`, which must be at least 1; ends the program if it is not. */
long positive(const char* text);

#endif
