#define _GNU_SOURCE
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "native/crc32c.h"

enum {
  kQueue = 1024,
  kParts = 16,
  /* This many bytes are sent at once; fewer wait until all received bytes are handled. */
  kSendAtOnce = 1 << 20,
};

struct connection {
  int fd;
  bool watches_write;
  /* Receiving: first a header, then its payload in `incoming`. */
  struct header header;
  size_t header_have, payload_have;
  uint32_t crc; /* of the received payload */
  struct buffer* incoming;
  /* Sending: a ring of buffers, and the number of bytes sent of the first one. */
  struct buffer* queue[kQueue];
  unsigned first, end;
  size_t sent, waiting;
};

struct connection* connections[MAX_WORKERS];
int workers;
bool checksums;

static int epoll;
static size_t chunk_bytes;
static struct buffer* pool;
static handler* handle_chunk;

static struct buffer* take(void) {
  struct buffer* buffer = pool;
  if (buffer != NULL) {
    pool = buffer->next;
  } else {
    const size_t size = sizeof *buffer + chunk_bytes;
    buffer = aligned_alloc(64, (size + 63) / 64 * 64);
    if (buffer == NULL) die("no memory for a buffer");
  }
  buffer->users = 1;
  return buffer;
}

void release(struct buffer* buffer) {
  if (--buffer->users != 0) return;
  buffer->next = pool;
  pool = buffer;
}

static void watch(struct connection* c, int operation, bool write) {
  struct epoll_event wish = {.events = EPOLLIN | (write ? EPOLLOUT : 0u), .data.ptr = c};
  if (epoll_ctl(epoll, operation, c->fd, &wish) != 0) die("epoll_ctl");
  c->watches_write = write;
}

/* --- out --- */

static int gather(const struct connection* c, struct iovec* parts) {
  int count = 0;
  size_t skip = c->sent;
  for (unsigned i = c->first; i != c->end && count < kParts; ++i, ++count) {
    struct buffer* buffer = c->queue[i % kQueue];
    parts[count].iov_base = (char*)&buffer->header + skip;
    parts[count].iov_len = sizeof buffer->header + buffer->header.length - skip;
    skip = 0;
  }
  return count;
}

static void forget_sent(struct connection* c, size_t size) {
  c->sent += size;
  while (c->first != c->end) {
    struct buffer* buffer = c->queue[c->first % kQueue];
    const size_t whole = sizeof buffer->header + buffer->header.length;
    if (c->sent < whole) return;
    c->sent -= whole;
    ++c->first;
    release(buffer);
  }
}

static void flush(struct connection* c) {
  c->waiting = 0;
  while (c->first != c->end) {
    struct iovec parts[kParts];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(c, parts)};
    const ssize_t size = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) {
      if (errno != EAGAIN) die("sendmsg");
      if (!c->watches_write) watch(c, EPOLL_CTL_MOD, true);
      return;
    }
    forget_sent(c, (size_t)size);
  }
  if (c->watches_write) watch(c, EPOLL_CTL_MOD, false);
}

void send_to(struct connection* to, struct buffer* buffer) {
  if (to->end - to->first == kQueue) die("a worker does not read");
  to->queue[to->end++ % kQueue] = buffer;
  ++buffer->users;
  to->waiting += buffer->header.length;
  if (to->waiting >= kSendAtOnce && !to->watches_write) flush(to);
}

/* --- in --- */

static void begin_payload(struct connection* c) {
  if (c->header.length > chunk_bytes) die("a chunk of %u bytes is too long", c->header.length);
  c->incoming = take();
  c->incoming->header = c->header;
  c->header_have = c->payload_have = 0;
  c->crc = 0;
}

static void end_payload(struct connection* c) {
  struct buffer* whole = c->incoming;
  if (c->crc != whole->header.crc) die("wrong CRC of chunk %u", whole->header.chunk);
  c->incoming = NULL;
  handle_chunk(whole);
}

/* Returns whether more bytes may be waiting. */
static bool read_once(struct connection* c) {
  struct iovec parts[2];
  int count = 0;
  const size_t missing = c->incoming ? c->incoming->header.length - c->payload_have : 0;
  if (c->incoming) parts[count++] = (struct iovec){c->incoming->data + c->payload_have, missing};
  parts[count++] =
      (struct iovec){(char*)&c->header + c->header_have, sizeof c->header - c->header_have};
  const size_t room = missing + sizeof c->header - c->header_have;
  const ssize_t size = readv(c->fd, parts, count);
  if (size < 0 && errno == EAGAIN) return false;
  if (size < 0) die("readv");
  if (size == 0) exit(0);
  const size_t payload = (size_t)size < missing ? (size_t)size : missing;
  if (checksums && payload) c->crc = rs_crc32c(c->crc, parts[0].iov_base, payload);
  c->payload_have += payload;
  c->header_have += (size_t)size - payload;
  if (c->incoming && payload == missing) end_payload(c);
  if (c->header_have == sizeof c->header) begin_payload(c);
  return (size_t)size == room;
}

/* --- the program --- */

static int listen_on(const char* address, const char* congestion) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  tune(listener, congestion);
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) die("%s is no IPv4 address", address);
  if (bind(listener, (struct sockaddr*)&at, size) != 0 || listen(listener, MAX_WORKERS) != 0) {
    die("cannot listen on %s", address);
  }
  getsockname(listener, (struct sockaddr*)&at, &size);
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  return listener;
}

static void accept_all(int listener, const char* congestion) {
  for (int i = 0; i < workers; ++i) {
    struct connection* c = connections[i] = calloc(1, sizeof *c);
    c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (c->fd < 0) die("accept");
    tune(c->fd, congestion);
    watch(c, EPOLL_CTL_ADD, false);
  }
  close(listener);
}

int serve(int argc, char** argv, handler* on_chunk) {
  if (argc < 5) die("usage: %s ADDRESS WORKERS CHUNK_BYTES CRC [CONGESTION]", argv[0]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  workers = (int)positive(argv[2]);
  chunk_bytes = (size_t)positive(argv[3]);
  checksums = *argv[4] == '1';
  handle_chunk = on_chunk;
  if (workers > MAX_WORKERS) die("at most %d workers", MAX_WORKERS);
  const char* congestion = argc > 5 ? argv[5] : "";
  epoll = epoll_create1(0);
  accept_all(listen_on(argv[1], congestion), congestion);
  for (;;) {
    struct epoll_event events[MAX_WORKERS];
    const int n = epoll_wait(epoll, events, MAX_WORKERS, -1);
    for (int i = 0; i < n; ++i) {
      struct connection* c = events[i].data.ptr;
      if (events[i].events & EPOLLOUT) flush(c);
      if (events[i].events & ~EPOLLOUT) {
        while (read_once(c)) {
        }
      }
    }
    for (int i = 0; i < workers; ++i) {
      if (!connections[i]->watches_write) flush(connections[i]);
    }
  }
}
