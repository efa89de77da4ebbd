/* One worker of the reference reducer. Every result is checked.
 *
 *     load ADDRESS PORT RANK WORKERS BYTES CHUNK_BYTES WINDOW_BYTES ROUNDS CRC IN_PLACE
 * [CONGESTION]
 *
 * The program makes the numbers of a batch of ROUNDS rounds and prints "ready". For each line of
 * stdin it runs a batch, one round right after the other, checks the results, and makes the numbers
 * of the next batch. Then it prints "done SECONDS CPU_SECONDS": the median time of a round, and the
 * CPU time (user and system) of the batch without making and checking the numbers. It ends at the
 * end of stdin.
 *
 * CRC and IN_PLACE are 1 or 0. With IN_PLACE 1 a result replaces the numbers of its round, and each
 * chunk is copied before it is sent: a worker that can send a chunk again needs this copy. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "native/crc32c.h"
#include "wire.h"

static int fd;
static size_t count, chunk_bytes, window; /* elements; bytes; chunks */
static uint32_t chunks, rounds;           /* of a round; of a batch */
static bool checksums, in_place;
static float *base, *given, *results; /* one round; the rounds of a batch, one after the other */
static char* copies;                  /* of the chunks in the window */

/* Progress of one round: chunks begun and received, and bytes of the current frames. */
struct progress {
  uint32_t first;  /* number of the round's first chunk */
  char *from, *to; /* the round's arrays */
  uint32_t begun, received;
  bool sending, receiving;
  struct header out, in, next;
  const char* source; /* of the chunk that is being sent */
  char* target;       /* of the chunk that is being received */
  size_t sent, header_have, payload_have;
  uint32_t crc; /* of the received payload */
};

static size_t length_of(uint32_t index) {
  const size_t all = count * sizeof(float), start = (size_t)index * chunk_bytes;
  return all - start < chunk_bytes ? all - start : chunk_bytes;
}

/* --- out --- */

/* Returns the CRC. */
static uint32_t copy_with_crc(char* to, const char* from, size_t length) {
  uint32_t crc = 0;
  for (size_t done = 0; done < length; done += kBlockBytes) {
    const size_t size = length - done < kBlockBytes ? length - done : kBlockBytes;
    memcpy(to + done, from + done, size);
    crc = rs_crc32c(crc, to + done, size);
  }
  return crc;
}

static void begin_chunk(struct progress* p) {
  const uint32_t index = p->begun++;
  const size_t length = length_of(index);
  char* copy = copies + index % window * chunk_bytes;
  const char* source = p->from + index * chunk_bytes;
  p->out = (struct header){p->first + index, (uint32_t)length, 0};
  p->source = in_place ? copy : source;
  if (in_place && checksums) {
    p->out.crc = copy_with_crc(copy, source, length);
  } else if (in_place) {
    memcpy(copy, source, length);
  } else if (checksums) {
    p->out.crc = rs_crc32c(0, source, length);
  }
  p->sent = 0;
  p->sending = true;
}

/* Returns whether the socket accepted any bytes. */
static bool send_some(struct progress* p) {
  if (!p->sending) {
    if (p->begun == chunks || p->begun - p->received >= window) return false;
    begin_chunk(p);
  }
  const size_t of_header = p->sent < sizeof p->out ? sizeof p->out - p->sent : 0;
  const size_t of_payload = p->sent + of_header - sizeof p->out;
  struct iovec parts[2] = {
      {(char*)&p->out + sizeof p->out - of_header, of_header},
      {(char*)p->source + of_payload, p->out.length - of_payload},
  };
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  const ssize_t size = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (size < 0 && errno != EAGAIN) die("sendmsg");
  if (size < 0) return false;
  p->sent += (size_t)size;
  p->sending = p->sent < sizeof p->out + p->out.length;
  return true;
}

/* --- in --- */

static void begin_payload(struct progress* p) {
  p->in = p->next;
  const uint32_t index = p->in.chunk - p->first;
  if (index >= chunks || p->in.length != length_of(index)) die("chunk %u came", p->in.chunk);
  p->target = p->to + index * chunk_bytes;
  p->header_have = p->payload_have = 0;
  p->crc = 0;
  p->receiving = true;
}

static void end_payload(struct progress* p) {
  if (p->crc != p->in.crc) die("wrong CRC of chunk %u", p->in.chunk);
  p->receiving = false;
  ++p->received;
}

/* Reads the rest of a payload and the next header with one call, as the server does. Returns
 * whether any bytes were received. */
static bool receive_some(struct progress* p) {
  const size_t missing = p->receiving ? p->in.length - p->payload_have : 0;
  struct iovec parts[2] = {
      {p->target + p->payload_have, missing},
      {(char*)&p->next + p->header_have, sizeof p->next - p->header_have},
  };
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  const ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT);
  if (size < 0 && errno == EAGAIN) return false;
  if (size <= 0) die("the server has gone");
  const size_t payload = (size_t)size < missing ? (size_t)size : missing;
  if (checksums && payload) p->crc = rs_crc32c(p->crc, parts[0].iov_base, payload);
  p->payload_have += payload;
  p->header_have += (size_t)size - payload;
  if (p->receiving && payload == missing) end_payload(p);
  if (p->header_have == sizeof p->next) begin_payload(p);
  return true;
}

/* --- rounds --- */

static void run_round(uint32_t first, float* from, float* to) {
  struct progress p = {.first = first, .from = (char*)from, .to = (char*)to, .target = (char*)to};
  while (p.received < chunks) {
    const bool sent = send_some(&p);
    if (receive_some(&p) || sent) continue;
    struct pollfd wait = {fd, POLLIN | (p.sending ? POLLOUT : 0), 0};
    poll(&wait, 1, -1);
  }
}

/* Small integers, different in each round and rank: a sum is exact in every order. */
static float factor_of(uint32_t number) { return (float)(1 + number % 5); }

static void make(uint32_t number, float* numbers, float scale) {
  const float factor = factor_of(number) * scale;
  for (size_t i = 0; i < count; ++i) numbers[i] = base[i] * factor;
}

static void check(uint32_t number, const float* numbers, float scale) {
  const float factor = factor_of(number) * scale;
  for (size_t i = 0; i < count; ++i) {
    if (numbers[i] != base[i] * factor) {
      errno = 0;
      die("round %u element %zu: expected %g, got %g", number, i, (double)(base[i] * factor),
          (double)numbers[i]);
    }
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* Writes the time of each round. */
static void run_batch(uint32_t number, double* seconds) {
  for (uint32_t i = 0; i < rounds; ++i) {
    const double begun = now();
    run_round((number + i) * chunks, given + i * count, results + i * count);
    seconds[i] = now() - begun;
  }
}

static int compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static double median(double* values) {
  qsort(values, rounds, sizeof *values, compare);
  return (values[(rounds - 1) / 2] + values[rounds / 2]) / 2;
}

/* --- the program --- */

static void connect_to(const char* address, int port, const char* congestion) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  if (inet_pton(AF_INET, address, &to.sin_addr) != 1) die("%s is no IPv4 address", address);
  fd = socket(AF_INET, SOCK_STREAM, 0);
  tune(fd, congestion);
  if (connect(fd, (struct sockaddr*)&to, sizeof to) != 0) die("connect to %s:%d", address, port);
}

static void* memory(size_t bytes) {
  void* place = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (place == NULL) die("no memory for %zu bytes", bytes);
  return memset(place, 0, bytes);
}

/* Reads the arguments from BYTES to IN_PLACE. */
static void prepare(char** argv) {
  const size_t bytes = (size_t)positive(argv[0]) / sizeof(float) * sizeof(float);
  count = bytes / sizeof(float);
  chunk_bytes = (size_t)positive(argv[1]);
  window = (size_t)positive(argv[2]) / chunk_bytes;
  if (window == 0) window = 1;
  chunks = (uint32_t)((bytes + chunk_bytes - 1) / chunk_bytes);
  rounds = (uint32_t)positive(argv[3]);
  checksums = *argv[4] == '1';
  in_place = *argv[5] == '1';
  base = memory(bytes);
  for (size_t i = 0; i < count; ++i) base[i] = (float)(i % 997);
  given = memory(rounds * bytes);
  results = in_place ? given : memory(rounds * bytes);
  copies = memory(window * chunk_bytes);
}

int main(int argc, char** argv) {
  if (argc < 11) {
    die("usage: %s ADDRESS PORT RANK WORKERS BYTES CHUNK WINDOW ROUNDS CRC IN_PLACE [CONGESTION]",
        argv[0]);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const long workers = positive(argv[4]);
  const float mine = (float)(strtol(argv[3], NULL, 10) + 1);
  const float summed = (float)(workers * (workers + 1) / 2);
  prepare(argv + 5);
  connect_to(argv[1], (int)positive(argv[2]), argc > 11 ? argv[11] : "");
  double* seconds = memory(rounds * sizeof *seconds);
  for (uint32_t i = 0; i < rounds; ++i) make(i, given + i * count, mine);
  printf("ready\n");
  fflush(stdout);
  char line[32];
  for (uint32_t number = 0; fgets(line, sizeof line, stdin) != NULL; number += rounds) {
    const double before = cpu_seconds();
    run_batch(number, seconds);
    const double used = cpu_seconds() - before;
    for (uint32_t i = 0; i < rounds; ++i) {
      check(number + i, results + i * count, summed);
      make(number + rounds + i, given + i * count, mine);
    }
    printf("done %.9f %.6f\n", median(seconds), used);
    fflush(stdout);
  }
  return 0;
}
