/* One worker of the reference reducer or echo, for any number of rounds; every result is checked.
 *
 *     load ADDRESS PORT RANK WORKERS BYTES CHUNK_BYTES WINDOW_BYTES SUM [CONGESTION]
 *
 * SUM is 1 for a reducer and 0 for an echo. The program prints "ready", then reads numbers of
 * rounds from stdin, one per line. After each batch of rounds it prints "done SECONDS": the time of
 * the exchanges, without making and checking the numbers. It ends at the end of stdin. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "wire.h"

static int fd;
static size_t count, chunk_bytes, window; /* elements; bytes; chunks */
static uint32_t chunks;                   /* of a round */
static float *base, *given, *result;

/* Progress of one round: chunks begun and received, and bytes of the current frames. */
struct progress {
  uint32_t first; /* number of the round's first chunk */
  uint32_t begun, received;
  bool sending;
  struct header out, in;
  size_t sent, in_have, payload_have;
};

static size_t length_of(uint32_t index) {
  const size_t all = count * sizeof(float), start = (size_t)index * chunk_bytes;
  return all - start < chunk_bytes ? all - start : chunk_bytes;
}

static char* at(float* array, uint32_t index) { return (char*)array + (size_t)index * chunk_bytes; }

/* Returns whether the socket accepted any bytes. */
static bool send_some(struct progress* p) {
  if (!p->sending) {
    if (p->begun == chunks || p->begun - p->received >= window) return false;
    p->out = (struct header){p->first + p->begun, (uint32_t)length_of(p->begun)};
    p->sending = true;
    p->sent = 0;
    ++p->begun;
  }
  const size_t of_header = p->sent < sizeof p->out ? sizeof p->out - p->sent : 0;
  const size_t of_payload = p->sent + of_header - sizeof p->out;
  struct iovec parts[2] = {
      {(char*)&p->out + sizeof p->out - of_header, of_header},
      {at(given, p->begun - 1) + of_payload, p->out.length - of_payload},
  };
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  const ssize_t size = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (size < 0 && errno != EAGAIN) die("sendmsg");
  if (size < 0) return false;
  p->sent += (size_t)size;
  p->sending = p->sent < sizeof p->out + p->out.length;
  return true;
}

/* Returns whether any bytes were received. */
static bool receive_some(struct progress* p) {
  const bool inside = p->in_have == sizeof p->in;
  struct iovec part = {(char*)&p->in + p->in_have, sizeof p->in - p->in_have};
  if (inside) {
    const uint32_t index = p->in.chunk - p->first;
    if (index >= chunks || p->in.length != length_of(index)) die("chunk %u came", p->in.chunk);
    part.iov_base = at(result, index) + p->payload_have;
    part.iov_len = p->in.length - p->payload_have;
  }
  const ssize_t size = recv(fd, part.iov_base, part.iov_len, MSG_DONTWAIT);
  if (size < 0 && errno == EAGAIN) return false;
  if (size <= 0) die("the server has gone");
  if (!inside) {
    p->in_have += (size_t)size;
  } else if ((p->payload_have += (size_t)size) == p->in.length) {
    p->in_have = p->payload_have = 0;
    ++p->received;
  }
  return true;
}

static void run_round(uint32_t first) {
  struct progress p = {.first = first};
  while (p.received < chunks) {
    const bool sent = send_some(&p);
    if (receive_some(&p) || sent) continue;
    const bool blocked = p.sending;
    struct pollfd wait = {fd, POLLIN | (blocked ? POLLOUT : 0), 0};
    poll(&wait, 1, -1);
  }
}

/* Small integers, different in each round and rank: a sum is exact in every order. */
static void check_round(uint32_t number, float my_scale, float result_scale, bool prepare) {
  const float factor = (float)(1 + number % 5);
  for (size_t i = 0; prepare && i < count; ++i) given[i] = base[i] * (factor * my_scale);
  for (size_t i = 0; !prepare && i < count; ++i) {
    if (result[i] != base[i] * (factor * result_scale)) {
      errno = 0;
      die("round %u element %zu: expected %g, got %g", number, i,
          (double)(base[i] * factor * result_scale), (double)result[i]);
    }
  }
}

static void connect_to(const char* address, int port, const char* congestion) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  if (inet_pton(AF_INET, address, &to.sin_addr) != 1) die("%s is no IPv4 address", address);
  fd = socket(AF_INET, SOCK_STREAM, 0);
  tune(fd, congestion);
  if (connect(fd, (struct sockaddr*)&to, sizeof to) != 0) die("connect to %s:%d", address, port);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static float* array(void) {
  float* memory = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
  if (memory == NULL) die("no memory for %zu elements", count);
  return memory;
}

int main(int argc, char** argv) {
  if (argc < 9) {
    die("usage: %s ADDRESS PORT RANK WORKERS BYTES CHUNK WINDOW SUM [CONGESTION]", argv[0]);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const long rank = strtol(argv[3], NULL, 10), workers = positive(argv[4]);
  count = (size_t)positive(argv[5]) / sizeof(float);
  chunk_bytes = (size_t)positive(argv[6]);
  window = (size_t)positive(argv[7]) / chunk_bytes;
  chunks = (uint32_t)((count * sizeof(float) + chunk_bytes - 1) / chunk_bytes);
  const float mine = (float)(rank + 1);
  const float summed = *argv[8] == '1' ? (float)(workers * (workers + 1) / 2) : mine;
  base = array(), given = array(), result = array();
  for (size_t i = 0; i < count; ++i) base[i] = (float)(i % 997);
  connect_to(argv[1], (int)positive(argv[2]), argc > 9 ? argv[9] : "");
  printf("ready\n");
  fflush(stdout);
  char line[32];
  for (uint32_t number = 0; fgets(line, sizeof line, stdin) != NULL;) {
    double exchanging = 0;
    for (long rounds = strtol(line, NULL, 10); rounds > 0; --rounds, ++number) {
      check_round(number, mine, summed, true);
      const double begun = now();
      run_round(number * chunks);
      exchanging += now() - begun;
      check_round(number, mine, summed, false);
    }
    printf("done %.6f\n", exchanging);
    fflush(stdout);
  }
  return 0;
}
