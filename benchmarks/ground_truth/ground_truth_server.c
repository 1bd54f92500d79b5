// A token server that says the truth about itself: it sends every token at a planned instant and writes
// down what it really did, so that a load generator's TTFT, TPOT and ITL can be checked against it.
//
// Knows nothing about models or tokenizers: a "prompt token" is four bytes of the body, an output token is
// the text " tok". One thread, one epoll, one clock (CLOCK_REALTIME, as the kernel's receive stamps).
// The subtle rule: the next instant is planned from the planned one, never from the real one, so a late
// token does not shift the others; and a token's time is taken just before it is handed to the kernel.
//
// Build: gcc -O2 -o ground_truth_server ground_truth_server.c -lm
// Usage: ground_truth_server PORT [OPTION=VALUE ...]
//   ttft_ms=100      from the whole request read to the first token
//   itl_ms=20        from token to token; 0: all at once, one write each (the highest rate there is)
//   jitter=0         0..1: every gap is itl_ms * (1 +- jitter), evenly spread
//   coalesce=1       tokens a write carries (what a batching proxy does)
//   prompt_usage=1   0: the usage event carries no prompt_tokens (this server does not tokenise)
//   log=FILE         at the end, a line a request: id accepted received first last tokens sum_of_gaps max_gap
//   gaps=FILE        at the end, a line a gap between writes: microseconds count
// Speaks POST .../completions, .../chat/completions, /generate_stream (TGI), and GET /v1/models, /health,
// /stats (totals as JSON), /quit. SIGTERM, SIGINT and /quit end it in order.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { GAP_BINS = 2000000, READ_SIZE = 65536, EVENTS = 512, TOKENS_A_TURN = 2048 };

typedef struct {
  char *bytes;
  size_t length, capacity;
} buffer;

typedef enum { COMPLETIONS, CHAT, TGI } protocol;

typedef struct {
  uint64_t id;
  double accepted, received, first, last, sum_of_gaps, max_gap;
  int tokens;
} record;

typedef struct {
  int fd, streaming, closing, waits_to_write;
  int place;        // in the heap of planned tokens; -1: not there
  double due;       // when the next token is planned
  buffer in, out;
  size_t sent;      // bytes of `out` the kernel has taken
  protocol speaks;
  int wants_usage, prompt_tokens, wanted;
  record log;       // of the request in progress
} connection;

static struct {
  double ttft, itl, jitter;
  int coalesce, prompt_usage;
  const char *log, *gaps;
} options = {.ttft = 0.1, .itl = 0.02, .coalesce = 1, .prompt_usage = 1};

static struct {
  uint64_t requests, tokens, connections, streams, max_streams;
} totals;

static connection **heap;
static int planned, heap_capacity;
static record *records;
static size_t recorded, record_capacity;
static uint32_t gap_counts[GAP_BINS];
static int poller;
static char listener_mark, timer_mark;  // their addresses stand for the two in epoll's events
static volatile sig_atomic_t stopping;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *grown(void *memory, size_t bytes) {
  memory = realloc(memory, bytes);
  if (!memory) {
    perror("out of memory");
    exit(1);
  }
  return memory;
}

// --- the plan: a binary heap of streaming connections, the earliest token on top ----------------------------

static void put_at(int place, connection *c) {
  heap[place] = c;
  c->place = place;
}

static void sift_up(int place) {
  connection *c = heap[place];
  for (int parent; place && heap[parent = (place - 1) / 2]->due > c->due; place = parent)
    put_at(place, heap[parent]);
  put_at(place, c);
}

static void sift_down(int place) {
  connection *c = heap[place];
  for (int child; (child = 2 * place + 1) < planned; place = child) {
    if (child + 1 < planned && heap[child + 1]->due < heap[child]->due) child++;
    if (heap[child]->due >= c->due) break;
    put_at(place, heap[child]);
  }
  put_at(place, c);
}

static void plan(connection *c, double due) {
  if (planned == heap_capacity) {
    heap_capacity = heap_capacity ? 2 * heap_capacity : 1024;
    heap = grown(heap, heap_capacity * sizeof *heap);
  }
  c->due = due;
  heap[planned] = c;
  sift_up(planned++);
}

static void replan(connection *c, double due) {
  c->due = due;
  sift_down(c->place);  // a token never moves to an earlier instant
}

static void unplan(connection *c) {
  int place = c->place;
  if (place < 0) return;
  c->place = -1;
  if (place == --planned) return;
  put_at(place, heap[planned]);
  sift_up(place);
  sift_down(heap[place]->place);
}

// --- bytes out ----------------------------------------------------------------------------------------------

static void append(buffer *b, const char *bytes, size_t length) {
  if (b->length + length > b->capacity) {
    b->capacity = 2 * (b->length + length);
    b->bytes = grown(b->bytes, b->capacity);
  }
  memcpy(b->bytes + b->length, bytes, length);
  b->length += length;
}

static void append_chunk(buffer *b, const char *bytes, size_t length) {
  char size[24];
  append(b, size, sprintf(size, "%zx\r\n", length));
  append(b, bytes, length);
  append(b, "\r\n", 2);
}

static void wait_to_write(connection *c, int wait) {
  if (c->waits_to_write == wait) return;
  c->waits_to_write = wait;
  struct epoll_event e = {.events = EPOLLIN | (wait ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void flush(connection *c) {
  while (c->sent < c->out.length) {
    ssize_t n = send(c->fd, c->out.bytes + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) {
      wait_to_write(c, 1);
      return;
    }
    if (n < 0) {
      c->closing = 1;
      return;
    }
    c->sent += n;
  }
  c->out.length = c->sent = 0;
  wait_to_write(c, 0);
}

static void answer(connection *c, const char *type, const char *body) {
  char head[256];
  append(&c->out, head, sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                                type, strlen(body)));
  append(&c->out, body, strlen(body));
  flush(c);
}

// --- the stream ---------------------------------------------------------------------------------------------

static int token_event(const connection *c, char *text) {
  unsigned long long id = c->log.id;
  int last = c->log.tokens + 1 == c->wanted;
  const char *finish = last ? "\"length\"" : "null";
  switch (c->speaks) {
    case CHAT:
      return sprintf(text,
                     "data: {\"id\":\"chatcmpl-%llu\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                     "\"model\":\"oracle\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tok\"},"
                     "\"logprobs\":null,\"finish_reason\":%s}]}\n\n", id, finish);
    case COMPLETIONS:
      return sprintf(text,
                     "data: {\"id\":\"cmpl-%llu\",\"object\":\"text_completion\",\"created\":1760000000,"
                     "\"model\":\"oracle\",\"choices\":[{\"index\":0,\"text\":\" tok\",\"logprobs\":null,"
                     "\"finish_reason\":%s,\"stop_reason\":null}]}\n\n", id, finish);
    default: {
      int n = sprintf(text, "data:{\"index\":%d,\"token\":{\"id\":1,\"text\":\" tok\",\"logprob\":-0.1,"
                            "\"special\":false},\"generated_text\":%s,\"details\":",
                      c->log.tokens + 1, last ? "\" tok\"" : "null");
      if (!last) return n + sprintf(text + n, "null}\n\n");
      return n + sprintf(text + n, "{\"finish_reason\":\"length\",\"generated_tokens\":%d,\"seed\":null}}\n\n",
                         c->wanted);
    }
  }
}

static int usage_event(const connection *c, char *text) {
  char prompt[80] = "";
  if (options.prompt_usage)
    sprintf(prompt, "\"prompt_tokens\":%d,\"total_tokens\":%d,", c->prompt_tokens, c->prompt_tokens + c->wanted);
  return sprintf(text,
                 "data: {\"id\":\"%s-%llu\",\"object\":\"%s\",\"created\":1760000000,\"model\":\"oracle\","
                 "\"choices\":[],\"usage\":{%s\"completion_tokens\":%d}}\n\n",
                 c->speaks == CHAT ? "chatcmpl" : "cmpl", (unsigned long long)c->log.id,
                 c->speaks == CHAT ? "chat.completion.chunk" : "text_completion", prompt, c->wanted);
}

static void keep_record(const connection *c) {
  if (recorded == record_capacity) {
    record_capacity = record_capacity ? 2 * record_capacity : 65536;
    records = grown(records, record_capacity * sizeof *records);
  }
  records[recorded++] = c->log;
}

static void end_stream(connection *c) {
  char text[512];
  if (c->speaks != TGI) {
    if (c->wants_usage) append_chunk(&c->out, text, usage_event(c, text));
    append_chunk(&c->out, "data: [DONE]\n\n", 14);
  }
  append(&c->out, "0\r\n\r\n", 5);
  flush(c);
  unplan(c);
  keep_record(c);
  c->streaming = 0;
  totals.streams--;
  totals.requests++;
}

static void note_write(record *r, double t) {
  if (!r->first) {
    r->first = t;
  } else {
    double gap = t - r->last;
    long us = lround(gap * 1e6);
    gap_counts[us < 0 ? 0 : us < GAP_BINS ? us : GAP_BINS - 1]++;
    r->sum_of_gaps += gap;
    if (gap > r->max_gap) r->max_gap = gap;
  }
  r->last = t;
}

static void send_tokens(connection *c) {
  char text[512];
  for (int k = 0; k < options.coalesce && c->log.tokens < c->wanted; k++) {
    append_chunk(&c->out, text, token_event(c, text));
    c->log.tokens++;
    totals.tokens++;
  }
  double t = now();
  flush(c);
  note_write(&c->log, t);
  if (c->log.tokens == c->wanted) {
    end_stream(c);
    return;
  }
  double uniform = (rand() + 0.5) / (RAND_MAX + 1.0);
  replan(c, c->due + options.itl * (1 - options.jitter + 2 * options.jitter * uniform));
}

static void begin_stream(connection *c) {
  static const char head[] =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
  append(&c->out, head, sizeof head - 1);
  flush(c);
  c->streaming = 1;
  if (++totals.streams > totals.max_streams) totals.max_streams = totals.streams;
  plan(c, c->log.received + options.ttft);
}

// --- requests in --------------------------------------------------------------------------------------------

// The number after a key of a flat JSON text, or -1. Enough here: the clients are load generators.
static long json_number(const char *text, const char *key) {
  const char *p = strstr(text, key);
  if (!p) return -1;
  p += strlen(key);
  p += strspn(p, " :");
  return *p >= '0' && *p <= '9' ? atol(p) : -1;
}

static long wanted_tokens(const char *body) {
  static const char *keys[] = {"\"max_tokens\"", "\"max_completion_tokens\"", "\"max_new_tokens\""};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    long n = json_number(body, keys[i]);
    if (n >= 0) return n > 0 ? n : 1;
  }
  return 16;
}

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void answer_get(connection *c, const char *path) {
  char text[256];
  if (!strncmp(path, "/quit", 5)) {
    stopping = 1;
    answer(c, "text/plain", "bye\n");
  } else if (!strncmp(path, "/stats", 6)) {
    sprintf(text, "{\"requests\":%llu,\"tokens\":%llu,\"connections\":%llu,\"max_streams\":%llu,\"cpu_s\":%.3f}\n",
            (unsigned long long)totals.requests, (unsigned long long)totals.tokens,
            (unsigned long long)totals.connections, (unsigned long long)totals.max_streams, cpu_seconds());
    answer(c, "application/json", text);
  } else if (strstr(path, "/models")) {
    answer(c, "application/json",
           "{\"object\":\"list\",\"data\":[{\"id\":\"oracle\",\"object\":\"model\",\"created\":1760000000,"
           "\"owned_by\":\"oracle\",\"max_model_len\":131072}]}");
  } else {
    answer(c, "application/json", "{}");
  }
}

static void answer_whole(connection *c) {
  char text[512];
  const char *chat = "\"message\":{\"role\":\"assistant\",\"content\":\" tok\"}";
  sprintf(text,
          "{\"id\":\"cmpl-%llu\",\"object\":\"%s\",\"created\":1760000000,\"model\":\"oracle\",\"choices\":"
          "[{\"index\":0,%s,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%d,"
          "\"completion_tokens\":%d,\"total_tokens\":%d}}",
          (unsigned long long)c->log.id, c->speaks == CHAT ? "chat.completion" : "text_completion",
          c->speaks == CHAT ? chat : "\"text\":\" tok\"", c->prompt_tokens, c->wanted,
          c->prompt_tokens + c->wanted);
  totals.requests++;
  answer(c, "application/json", text);
}

static void serve(connection *c, const char *head, const char *body, size_t body_length) {
  static uint64_t last_id;
  char method[8] = "", path[256] = "";
  sscanf(head, "%7s %255s", method, path);
  if (strcmp(method, "POST")) {
    answer_get(c, path);
    return;
  }
  c->log = (record){.id = ++last_id, .accepted = c->log.accepted, .received = now()};
  c->speaks = strstr(path, "chat") ? CHAT : strstr(path, "generate") ? TGI : COMPLETIONS;
  c->wants_usage = strstr(body, "include_usage") != NULL;
  c->wanted = wanted_tokens(body);
  c->prompt_tokens = body_length / 4;
  int stream = strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true");
  if (stream || c->speaks == TGI)
    begin_stream(c);
  else
    answer_whole(c);
}

// The length of the body after a head of `head_length` bytes, or -1 while it is not all there;
// *end is where the next request begins.
static long body_length(const buffer *in, size_t head_length, size_t *end) {
  const char *body = in->bytes + head_length;
  if (strcasestr(in->bytes, "transfer-encoding: chunked")) {
    const char *mark = memmem(body, in->length - head_length, "0\r\n\r\n", 5);
    if (!mark) return -1;
    *end = mark + 5 - in->bytes;
    return mark - body;
  }
  const char *field = strcasestr(in->bytes, "content-length:");
  size_t length = field ? strtoul(field + 15, NULL, 10) : 0;
  if (in->length < head_length + length) return -1;
  *end = head_length + length;
  return length;
}

static void serve_what_is_whole(connection *c) {
  while (!c->closing && !c->streaming && c->in.length) {
    char *blank = memmem(c->in.bytes, c->in.length, "\r\n\r\n", 4);
    if (!blank) return;
    size_t head_length = blank + 4 - c->in.bytes, end;
    *blank = 0;  // the head is a string of its own while we look into it
    long length = body_length(&c->in, head_length, &end);
    if (length < 0) {
      *blank = '\r';
      return;
    }
    char next = c->in.bytes[end];
    c->in.bytes[end] = 0;
    serve(c, c->in.bytes, c->in.bytes + head_length, length);
    c->in.bytes[end] = next;
    memmove(c->in.bytes, c->in.bytes + end, c->in.length -= end);
  }
}

static void read_all(connection *c) {
  for (;;) {
    if (c->in.capacity - c->in.length < READ_SIZE + 1) {
      c->in.capacity = 2 * c->in.capacity + 2 * READ_SIZE;
      c->in.bytes = grown(c->in.bytes, c->in.capacity);
    }
    ssize_t n = recv(c->fd, c->in.bytes + c->in.length, READ_SIZE, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) c->closing = 1;
    if (n <= 0) break;
    c->in.length += n;
    if (n < READ_SIZE) break;
  }
  c->in.bytes[c->in.length] = 0;
  serve_what_is_whole(c);
}

static void drop(connection *c) {
  unplan(c);
  if (c->streaming) {
    totals.streams--;
    keep_record(c);  // with the tokens that were sent
  }
  close(c->fd);
  free(c->in.bytes);
  free(c->out.bytes);
  free(c);
}

static void accept_all(int listener) {
  for (int fd, one = 1; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connection *c = grown(NULL, sizeof *c);
    *c = (connection){.fd = fd, .place = -1, .log.accepted = now()};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    totals.connections++;
  }
}

// --- the loop -----------------------------------------------------------------------------------------------

static void send_what_is_due(void) {
  double t = now();
  for (int k = 0; k < TOKENS_A_TURN && planned && heap[0]->due <= t; k++) {
    connection *c = heap[0];
    send_tokens(c);
    if (!c->closing && !c->streaming) serve_what_is_whole(c);
    if (c->closing) drop(c);
  }
}

static int milliseconds_to_wait(int timer) {
  if (!planned) return 200;
  double t = heap[0]->due;
  if (t <= now()) return 0;
  struct itimerspec at = {.it_value = {.tv_sec = (time_t)t, .tv_nsec = (long)((t - floor(t)) * 1e9)}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
  return 1000;
}

static void run(int listener, int timer) {
  struct epoll_event events[EVENTS];
  while (!stopping) {
    int n = epoll_wait(poller, events, EVENTS, milliseconds_to_wait(timer));
    for (int i = 0; i < n; i++) {
      connection *c = events[i].data.ptr;
      uint64_t expirations;
      if (events[i].data.ptr == &listener_mark) {
        accept_all(listener);
      } else if (events[i].data.ptr == &timer_mark) {
        (void)!read(timer, &expirations, sizeof expirations);
      } else {
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_all(c);
        if (events[i].events & EPOLLOUT) flush(c);
        if (c->closing) drop(c);
      }
    }
    send_what_is_due();
  }
}

static void write_log(void) {
  FILE *f = options.log ? fopen(options.log, "w") : NULL;
  if (!f) return;
  for (record *r = records; r < records + recorded; r++)
    fprintf(f, "%llu %.6f %.6f %.6f %.6f %d %.6f %.6f\n", (unsigned long long)r->id, r->accepted, r->received,
            r->first, r->last, r->tokens, r->sum_of_gaps, r->max_gap);
  fclose(f);
}

static void write_gaps(void) {
  FILE *f = options.gaps ? fopen(options.gaps, "w") : NULL;
  if (!f) return;
  for (int us = 0; us < GAP_BINS; us++)
    if (gap_counts[us]) fprintf(f, "%d %u\n", us, gap_counts[us]);
  fclose(f);
}

static void stop(int signal_number) {
  (void)signal_number;
  stopping = 1;
}

static int parse_option(const char *text) {
  char key[32], value[512];
  if (sscanf(text, "%31[^=]=%511s", key, value) != 2) return 0;
  if (!strcmp(key, "ttft_ms")) options.ttft = atof(value) / 1e3;
  else if (!strcmp(key, "itl_ms")) options.itl = atof(value) / 1e3;
  else if (!strcmp(key, "jitter")) options.jitter = atof(value);
  else if (!strcmp(key, "coalesce")) options.coalesce = atoi(value);
  else if (!strcmp(key, "prompt_usage")) options.prompt_usage = atoi(value);
  else if (!strcmp(key, "log")) options.log = text + 4;
  else if (!strcmp(key, "gaps")) options.gaps = text + 5;
  else return 0;
  return options.coalesce > 0 && options.jitter >= 0 && options.jitter <= 1;
}

static int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in here = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(fd, (void *)&here, sizeof here) || listen(fd, 4096)) {
    perror("cannot listen");
    exit(1);
  }
  return fd;
}

static void watch(int fd, void *mark) {
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = mark};
  epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 0;
  if (port <= 0) {
    fprintf(stderr, "usage: ground_truth_server PORT [ttft_ms=100] [itl_ms=20] [jitter=0] [coalesce=1] "
                    "[prompt_usage=1] [log=FILE] [gaps=FILE]\n");
    return 2;
  }
  for (int i = 2; i < argc; i++)
    if (!parse_option(argv[i])) {
      fprintf(stderr, "ground_truth_server: cannot use '%s'\n", argv[i]);
      return 2;
    }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  int listener = listen_on(port), timer = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
  poller = epoll_create1(0);
  watch(listener, &listener_mark);
  watch(timer, &timer_mark);
  fprintf(stderr, "ground truth on port %d: ttft %g ms, itl %g ms\n", port, options.ttft * 1e3, options.itl * 1e3);
  run(listener, timer);
  write_log();
  write_gaps();
  fprintf(stderr, "requests %llu tokens %llu connections %llu max_streams %llu cpu %.2f s\n",
          (unsigned long long)totals.requests, (unsigned long long)totals.tokens,
          (unsigned long long)totals.connections, (unsigned long long)totals.max_streams, cpu_seconds());
  return 0;
}
