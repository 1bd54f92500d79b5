// The cheapest reader of token streams that one core allows: epoll, recvmsg with the kernel's receive stamp,
// and a search for "data: {". It parses no JSON and checks nothing: what a load generator needs beyond this
// is the price of being one.
//
// Build: gcc -O2 -o read_limit read_limit.c
// Usage: read_limit PORT STREAMS REQUESTS OUTPUT_TOKENS        against ground_truth_server on 127.0.0.1
// Prints one line: events N reads N wall S cpu S us/event X ev/s X ttft p50 MS p99 MS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  int fd;
  double sent, first;
} stream;

static char request[1024];
static int request_length, poller;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void write_request(int tokens) {
  char body[512];
  int length = sprintf(body, "{\"model\":\"oracle\",\"prompt\":\"Tell me about the sea.\",\"max_tokens\":%d,"
                             "\"stream\":true}", tokens);
  request_length = sprintf(request, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                    "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, body);
}

static void open_stream(stream *s, int port) {
  int one = 1;
  struct sockaddr_in there = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  s->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(s->fd, (void *)&there, sizeof there)) {
    perror("cannot connect");
    exit(1);
  }
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
  epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &e);
}

static void ask(stream *s) {
  s->first = 0;
  s->sent = now();
  if (write(s->fd, request, request_length) != request_length) {
    perror("cannot send");
    exit(1);
  }
}

// Bytes read (0 or less: none), and when the kernel received them.
static ssize_t read_stamped(int fd, char *bytes, size_t size, double *stamp) {
  char control[64];
  struct iovec part = {bytes, size};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
  struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (header) {
    struct timespec t;
    memcpy(&t, CMSG_DATA(header), sizeof t);
    *stamp = t.tv_sec + t.tv_nsec * 1e-9;
  } else {
    *stamp = now();
  }
  return n;
}

static long count_events(const char *bytes, size_t length) {
  long count = 0;
  const char *end = bytes + length;
  for (const char *p = bytes; (p = memmem(p, end - p, "data: {", 7)); p += 7) count++;
  return count;
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: read_limit PORT STREAMS REQUESTS OUTPUT_TOKENS\n");
    return 2;
  }
  int port = atoi(argv[1]), width = atoi(argv[2]), wanted = atoi(argv[3]);
  int asked = 0, done = 0;
  long events = 0, reads = 0;
  stream *streams = calloc(width, sizeof *streams);
  double *ttft_ms = calloc(wanted, sizeof *ttft_ms);
  struct epoll_event ready[256];
  static char bytes[65536];

  write_request(atoi(argv[4]));
  poller = epoll_create1(0);
  for (int i = 0; i < width; i++) open_stream(streams + i, port);
  double began = now();
  for (; asked < width && asked < wanted; asked++) ask(streams + asked);
  while (done < wanted) {
    int n = epoll_wait(poller, ready, 256, 5000);
    if (n <= 0) {
      fprintf(stderr, "read_limit: the server was silent for 5 s\n");
      return 1;
    }
    for (int i = 0; i < n; i++) {
      stream *s = ready[i].data.ptr;
      double stamp;
      ssize_t length = read_stamped(s->fd, bytes, sizeof bytes, &stamp);
      if (length <= 0) continue;
      long found = count_events(bytes, length);
      reads++;
      events += found;
      if (found && !s->first) s->first = stamp;
      if (!memmem(bytes, length, "[DONE]", 6)) continue;
      ttft_ms[done++] = (s->first - s->sent) * 1e3;
      if (asked < wanted) {
        ask(s);
        asked++;
      }
    }
  }
  double wall = now() - began, cpu = cpu_seconds();
  qsort(ttft_ms, done, sizeof *ttft_ms, ascending);
  printf("events %ld reads %ld wall %.2f cpu %.2f us/event %.2f ev/s %.0f ttft p50 %.2f p99 %.2f\n", events, reads,
         wall, cpu, cpu / events * 1e6, events / wall, ttft_ms[done / 2], ttft_ms[(int)(done * 0.99)]);
  return 0;
}
