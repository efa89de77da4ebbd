/* A one-thread epoll server of chunks: what the minimal reducer and its floor, the echo, share.
 * A chunk is read straight into a pooled buffer, with the next header behind it in the same call,
 * and sent from there to any number of workers. No CRC and no checks of what a peer says. */
#ifndef REFERENCE_SERVER_H
#define REFERENCE_SERVER_H

#include "wire.h"

#define MAX_WORKERS 64

/* One chunk. `data` is 64-byte aligned, `header` lies right before it: both go out in one part. */
struct buffer {
  struct buffer* next; /* in the pool */
  int users;           /* 0 gives it back to the pool */
  char padding[44];
  struct header header;
  char data[];
};

struct connection;

/* What the two programs do differently. `part` is the handler's, until it calls `release`. */
typedef void handler(struct connection* from, struct buffer* part);

extern struct connection* connections[MAX_WORKERS];
extern int workers;

/* Sends header and data to a worker, soon; counts as a user until they are sent. */
void send_to(struct connection* to, struct buffer* buffer);
void release(struct buffer* buffer);

/* The whole program: ADDRESS WORKERS CHUNK_BYTES [CONGESTION]. Listens on a free port of the IPv4
 * address, prints it, and serves until the first worker has gone. */
int serve(int argc, char** argv, handler* on_chunk);

#endif
