/* An epoll server of chunks with one thread. It reads a chunk and the next header straight into a
 * pooled buffer with one call, and sends the chunk from there to any number of workers. Apart from
 * the CRC, it checks nothing that a peer sends. */
#ifndef REFERENCE_SERVER_H
#define REFERENCE_SERVER_H

#include <stdbool.h>

#include "wire.h"

#define MAX_WORKERS 64

/* One chunk. `data` is 64-byte aligned, `header` lies right before it: both go out in one part. */
struct buffer {
  struct buffer* next; /* in the pool */
  int users;           /* at 0 the buffer goes back to the pool */
  char padding[40];
  struct header header;
  char data[];
};

struct connection;

/* Handles a chunk. It owns `part` until it calls `release`. */
typedef void handler(struct buffer* part);

extern struct connection* connections[MAX_WORKERS];
extern int workers;
extern bool checksums; /* whether chunks have a CRC */

/* Queues header and data for a worker; counts as a user of the buffer until they are sent. */
void send_to(struct connection* to, struct buffer* buffer);
void release(struct buffer* buffer);

/* The whole program: ADDRESS WORKERS CHUNK_BYTES CRC [CONGESTION]. CRC is 1 or 0. Listens on a free
 * port of the IPv4 address, prints it, and serves until the first worker has gone. */
int serve(int argc, char** argv, handler* on_chunk);

#endif
