#include "wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

_Noreturn void die(const char* format, ...) {
  const int error = errno;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
  exit(1);
}

void tune(int fd, const char* congestion) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
  if (*congestion != '\0' &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) != 0) {
    die("congestion control %s (allowed are those in tcp_allowed_congestion_control)", congestion);
  }
}

long positive(const char* text) {
  char* end;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (*end != '\0' || value < 1) die("expected a number from 1, got %s", text);
  return value;
}
