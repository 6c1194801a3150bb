/* The two ends of the proxy's benchmark: an engine whose streams tick together, and its clients.
 *
 * In C, as in the measurements of shared/design/proxy-path.md: on two cores an end in Python takes
 * as long for an event as the proxies that are measured, and what they wait for is then each other.
 *
 *   ends engine PORT_FILE [spin]          writes its port into the file and serves for ever.
 *                                         spin: never sleeps, and sends to itself before a tick:
 *                                         the first send after a rest takes 30 us to get out
 *   ends paced PORT STREAMS EVENTS GAP_MS SECONDS [idle]
 *                                         reads streams to their ends; of each event when it was
 *                                         sent and when it was read here, ns since 1970 as int64,
 *                                         native order, to stdout. idle: runs only where nobody
 *                                         else wants the core
 *   ends closed PORT CONNECTIONS SECONDS  one-event streams on kept connections, one after another;
 *                                         the number answered, in decimal, to stdout
 *
 * A request's message says what it wants: {"events": N, "gap_ms": G, "pad": BYTES, "hold": true,
 * "silent": true}; it stands in the message because a peer that re-serialises requests drops unknown
 * fields. Each event carries its own send time (CLOCK_REALTIME, ns). GET /closed tells when streams
 * were closed on the engine and how many bytes of padding it got rid of.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 65536
#define READ_BYTES 262144
#define DIGITS 19 /* of a time in ns until the year 2286 */
#define NEVER LONG_MAX

static const char HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char EVENT[] =
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1796046953,"
    "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
    "\"finish_reason\":null}]}\n\n";
static const char LAST[] =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: [DONE]\n\n";
static const char CONTENT[] = "\"content\":\"";
static const char END[] = "0\r\n\r\n";

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void watch(int poll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

/* ---- the engine ---- */

typedef struct {
    char *buffer; /* of the request, grows as it comes */
    size_t length, room;
    int streaming;
    long left, every, due, pad;
} Connection;

static Connection *connections[MAX_FDS];
static int engine_poll, highest = 0;
static long now_ms = 0, turn = 0, taken = 0;
static double closed_at[4096];
static int closed_count = 0;

static char chunk[1024];  /* one event */
static char *digits;      /* where its time stands in it */
static size_t chunk_length;

static void make_chunk(void) {
    char event[1024], zeros[DIGITS + 1];
    memset(zeros, '0', DIGITS);
    zeros[DIGITS] = 0;
    int length = snprintf(event, sizeof event, EVENT, zeros);
    chunk_length = (size_t)snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", (unsigned)length, event);
    digits = strstr(chunk, CONTENT) + strlen(CONTENT);
}

static void stamp_chunk(void) {
    int64_t now = clock_ns(CLOCK_REALTIME);
    for (int i = DIGITS - 1; i >= 0; i--, now /= 10) digits[i] = (char)('0' + now % 10);
}

static void drop(int fd) {
    Connection *c = connections[fd];
    if (c->streaming && closed_count < 4096)
        closed_at[closed_count++] = (double)clock_ns(CLOCK_REALTIME) / 1e9;
    free(c->buffer);
    free(c);
    connections[fd] = NULL;
    close(fd);
}

static void say(int fd, const char *format, ...) {
    char *text;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) die("vasprintf");
    if (send(fd, text, (size_t)length, MSG_NOSIGNAL) < 0) drop(fd);
    free(text);
}

static void accept_all(int listener) {
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        no_delay(fd);
        connections[fd] = calloc(1, sizeof(Connection));
        if (!connections[fd]) die("calloc");
        if (fd > highest) highest = fd;
        watch(engine_poll, fd);
    }
}

/* A field of the wish, whose quotes are escaped because it stands in a JSON string. */
static long wish(const char *body, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\\\"%s\\\": ", name);
    const char *found = strstr(body, key);
    if (!found) return 0;
    found += strlen(key);
    return *found == 't' ? 1 : atol(found); /* true, or a number */
}

static void tell_closed(int fd) {
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    fprintf(out, "{\"closed\":[");
    for (int i = 0; i < closed_count; i++) fprintf(out, "%s%.6f", i ? "," : "", closed_at[i]);
    fprintf(out, "],\"taken\":%ld}", taken);
    fclose(out);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", length, text);
    free(text);
}

static void answer(int fd, const char *head, const char *body) {
    if (!strncmp(head, "GET /closed", 11)) {
        tell_closed(fd);
        return;
    }
    if (!strncmp(head, "GET", 3)) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"data\":[]}");
        return;
    }
    Connection *c = connections[fd];
    c->left = wish(body, "events");
    c->every = wish(body, "gap_ms");
    c->pad = wish(body, "pad");
    turn++;
    if (wish(body, "silent")) {
        c->streaming = 1;
        c->left = c->pad = 0;
        c->due = NEVER;
        return;
    }
    if (!c->every && !c->pad) { /* at once, in one send */
        char *text;
        size_t length;
        FILE *out = open_memstream(&text, &length);
        fputs(HEAD, out);
        for (; c->left > 0; c->left--) {
            stamp_chunk();
            fwrite(chunk, 1, chunk_length, out);
        }
        fprintf(out, "%zx\r\n%s\r\n%s", strlen(LAST), LAST, END);
        fclose(out);
        if (send(fd, text, length, MSG_NOSIGNAL) < 0) drop(fd);
        free(text);
        return;
    }
    /* Streams tick in two groups, half a gap apart: what an engine step does to its batch. */
    if (c->every) {
        long half = (turn % 2) * c->every / 2;
        c->due = now_ms + c->every - (((now_ms - half) % c->every) + c->every) % c->every;
    } else {
        c->due = now_ms;
    }
    if (wish(body, "hold")) c->due = NEVER;
    c->streaming = 1;
    say(fd, "%s", HEAD);
}

static void hear(int fd) {
    Connection *c = connections[fd];
    if (!c) return;
    if (c->room - c->length < 65536) {
        c->room = c->room * 2 + 131072;
        c->buffer = realloc(c->buffer, c->room + 1);
        if (!c->buffer) die("realloc");
    }
    ssize_t got = recv(fd, c->buffer + c->length, c->room - c->length, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        drop(fd);
        return;
    }
    c->length += (size_t)got;
    c->buffer[c->length] = 0;
    char *body = strstr(c->buffer, "\r\n\r\n");
    if (!body) return;
    *body = 0; /* the head alone, for the search */
    char *field = strcasestr(c->buffer, "content-length:");
    size_t size = field ? (size_t)atol(field + 15) : 0;
    if (c->length - (size_t)(body + 4 - c->buffer) < size) {
        *body = '\r';
        return;
    }
    c->length = 0; /* no pipelining here */
    answer(fd, c->buffer, body + 4);
}

/* As much filler as the socket takes. */
static void push(int fd, Connection *c) {
    static char filler[66000];
    static size_t length;
    if (!length) {
        length = (size_t)sprintf(filler, "%x\r\n: ", 65004);
        memset(filler + length, 'x', 65000);
        length += 65000;
        length += (size_t)sprintf(filler + length, "\n\n\r\n");
    }
    while (c->pad > 0) {
        ssize_t sent = send(fd, filler, length, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) drop(fd);
            return;
        }
        taken += sent;
        c->pad -= sent;
        if ((size_t)sent < length) return; /* a torn chunk: this stream is never ended properly */
    }
}

/* The kernel's way for a send, walked once: a loopback connection with both ends here. */
static void warm_up(int listener) {
    static int out = -1, in = -1;
    char rest[1024];
    if (out < 0) {
        struct sockaddr_in address;
        socklen_t size = sizeof address;
        getsockname(listener, (struct sockaddr *)&address, &size);
        int own = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_port = 0;
        if (bind(own, (struct sockaddr *)&address, size) || listen(own, 1)) die("listen");
        getsockname(own, (struct sockaddr *)&address, &size);
        out = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(out, (struct sockaddr *)&address, size)) die("connect");
        in = accept(own, NULL, NULL);
        close(own);
        no_delay(out);
    }
    stamp_chunk();
    if (send(out, chunk, chunk_length, MSG_NOSIGNAL) < 0 || recv(in, rest, sizeof rest, 0) <= 0)
        die("warm_up");
}

static void tick(void) {
    for (int fd = 0; fd <= highest; fd++) {
        Connection *c = connections[fd];
        if (!c || !c->streaming || c->due > now_ms) continue;
        if (c->pad) {
            push(fd, c);
            continue;
        }
        c->due += c->every;
        if (c->left-- > 0) {
            stamp_chunk(); /* as little as can be between the two */
            if (send(fd, chunk, chunk_length, MSG_NOSIGNAL) < 0) drop(fd);
        } else {
            c->streaming = 0;
            say(fd, "%zx\r\n%s\r\n%s", strlen(LAST), LAST, END);
        }
    }
}

static void engine(const char *port_file, int spin) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec each = {.it_interval.tv_nsec = 1000000, .it_value.tv_nsec = 1000000};
    timerfd_settime(timer, 0, &each, NULL);
    engine_poll = epoll_create1(0);
    watch(engine_poll, listener);
    watch(engine_poll, timer);
    make_chunk();
    FILE *file = fopen(port_file, "w");
    if (!file) die(port_file);
    fprintf(file, "%d", ntohs(address.sin_port));
    fclose(file);
    struct epoll_event ready[512];
    for (;;) {
        int count = epoll_wait(engine_poll, ready, 512, spin ? 0 : -1);
        uint64_t passed = 0;
        for (int i = 0; i < count; i++) {
            if (ready[i].data.fd == listener)
                accept_all(listener);
            else if (ready[i].data.fd == timer) {
                if (read(timer, &passed, sizeof passed) != sizeof passed) passed = 0;
            } else
                hear(ready[i].data.fd);
        }
        now_ms += (long)passed;
        if (passed && spin) warm_up(listener);
        if (passed) tick();
    }
}

/* ---- the clients ---- */

static char request_bytes[1024];
static size_t request_length;

static void make_request(long events, long gap_ms) {
    char body[512];
    int length = snprintf(
        body, sizeof body,
        "{\"model\": \"m\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": "
        "\"{\\\"events\\\": %ld, \\\"gap_ms\\\": %ld}\"}]}", events, gap_ms);
    request_length = (size_t)snprintf(
        request_bytes, sizeof request_bytes,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        "Content-Length: %d\r\n\r\n%s", length, body);
}

static void ask(int fd) {
    if (send(fd, request_bytes, request_length, MSG_NOSIGNAL) < 0) die("send");
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    no_delay(fd);
    ask(fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static char data[READ_BYTES + 1];

static int ended(ssize_t got) {
    return got >= 5 && !memcmp(data + got - 5, END, 5);
}

static void paced(int port, int streams, long events, long gap_ms, double seconds) {
    int poll = epoll_create1(0), open = streams;
    size_t room = 2 * (size_t)streams * (size_t)events, count = 0;
    int64_t *times = malloc(room * sizeof *times + 1);
    if (!times) die("malloc");
    make_request(events, gap_ms);
    int64_t end = clock_ns(CLOCK_MONOTONIC) + (int64_t)((seconds * 3 + 20) * 1e9);
    for (int i = 0; i < streams; i++) watch(poll, connect_to(port));
    struct epoll_event ready[512];
    while (open && clock_ns(CLOCK_MONOTONIC) < end) {
        int found = epoll_wait(poll, ready, 512, 1000);
        for (int i = 0; i < found; i++) {
            int fd = ready[i].data.fd;
            ssize_t got = recv(fd, data, READ_BYTES, 0);
            int64_t now = clock_ns(CLOCK_REALTIME);
            if (got < 0 && errno == EAGAIN) continue;
            char *at = data, *stop = data + (got > 0 ? got : 0);
            while ((at = memmem(at, (size_t)(stop - at), CONTENT, sizeof CONTENT - 1))) {
                at += sizeof CONTENT - 1;
                if (stop - at < DIGITS) break;
                int64_t sent = 0;
                for (int d = 0; d < DIGITS; d++) sent = sent * 10 + (at[d] - '0');
                if (count < room) times[count++] = sent, times[count++] = now;
            }
            if (got <= 0 || ended(got)) {
                close(fd);
                open--;
            }
        }
    }
    fwrite(times, sizeof *times, count, stdout);
}

static void closed(int port, int connections_open, double seconds) {
    int poll = epoll_create1(0);
    long done = 0;
    make_request(1, 0);
    int64_t end = clock_ns(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
    for (int i = 0; i < connections_open; i++) watch(poll, connect_to(port));
    struct epoll_event ready[512];
    while (connections_open && clock_ns(CLOCK_MONOTONIC) < end) {
        int found = epoll_wait(poll, ready, 512, 100);
        for (int i = 0; i < found; i++) {
            int fd = ready[i].data.fd;
            ssize_t got = recv(fd, data, READ_BYTES, 0);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                close(fd);
                connections_open--;
            } else if (ended(got)) { /* a tail that is torn in the middle stops that connection */
                done++;
                ask(fd);
            }
        }
    }
    printf("%ld\n", done);
}

int main(int argc, char **argv) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (argc >= 3 && !strcmp(argv[1], "engine")) engine(argv[2], argc > 3);
    if (argc == 8 && !strcmp(argv[7], "idle")) {
        struct sched_param none = {0};
        if (sched_setscheduler(0, SCHED_IDLE, &none)) die("sched_setscheduler");
    }
    if (argc >= 7 && !strcmp(argv[1], "paced"))
        paced(atoi(argv[2]), atoi(argv[3]), atol(argv[4]), atol(argv[5]), atof(argv[6]));
    else if (argc == 5 && !strcmp(argv[1], "closed"))
        closed(atoi(argv[2]), atoi(argv[3]), atof(argv[4]));
    else
        return fprintf(stderr, "usage: see the head of this file\n"), 2;
    return 0;
}
