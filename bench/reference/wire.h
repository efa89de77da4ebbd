/* What the reference programs speak: a header of 8 bytes, then the floats of one chunk. Both ends
 * run on one machine, so the byte order is its own. */
#ifndef REFERENCE_WIRE_H
#define REFERENCE_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct header {
  uint32_t chunk;  /* counted on over all rounds */
  uint32_t length; /* bytes of payload */
};

/* Ends the program with a line on stderr; with errno's text if it is not 0. */
_Noreturn void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* NODELAY, and the congestion control unless it is empty. */
void tune(int fd, const char* congestion);

/* The integer in text, at least 1; ends the program where it is none. */
long positive(const char* text);

#endif
