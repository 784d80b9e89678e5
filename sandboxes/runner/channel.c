/* A channel is one command (or one proxied connection): its pipes, its bounds, its end. */
#include "runner.h"

#include <sys/socket.h>
#include <sys/wait.h>

struct channel channels[MAX_CHANNELS];
int highest_fd = 2;

int noted(int fd) {
    if (fd > highest_fd) highest_fd = fd;
    return fd;
}

void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

struct channel *channel_find(uint32_t id) {
    for (int i = 0; i < MAX_CHANNELS; i++)
        if (channels[i].used && channels[i].id == id) return &channels[i];
    return NULL;
}

struct channel *channel_new(uint32_t id) {
    for (int i = 0; i < MAX_CHANNELS; i++) {
        struct channel *c = &channels[i];
        if (c->used) continue;
        memset(c, 0, sizeof *c);
        c->used = true;
        c->id = id;
        c->in = c->status = c->report = c->streams[0].fd = c->streams[1].fd = -1;
        c->started = now_us();
        return c;
    }
    return NULL;
}

static void refuse(uint32_t id, uint8_t phase, int code) {
    uint8_t payload[48] = {NOT_STARTED, 0, phase, 0};
    put32(payload + 4, (uint32_t)code);
    send_frame(id, EXIT, payload, sizeof payload);
}

static bool pair(int *ours, int *theirs, bool we_read) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return false;
    *ours = noted(ends[we_read ? 0 : 1]);
    *theirs = noted(ends[we_read ? 1 : 0]);
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static void close_ours(struct channel *c) {
    close_fd(&c->in);
    close_fd(&c->status);
    close_fd(&c->report);
    for (int i = 0; i < 2; i++) close_fd(&c->streams[i].fd);
}

static void release(struct channel *c) {
    close_ours(c);
    for (int i = 0; i < 2; i++) free(c->streams[i].ring);
    free(c->input.data);
    c->used = false;
}

void channel_start(uint32_t id, struct command *command) {
    struct channel *c = channel_find(id) ? NULL : channel_new(id);
    if (!c) {
        refuse(id, P_RESOURCES, EBUSY);
        return;
    }
    c->flags = command->flags;
    c->builtin = command->kind != RUN;
    c->head_limit = c->window = command->head;
    c->tail_limit = command->tail;
    c->oom_before = oom_kills();
    clock_start(c, command->timeout);
    for (int i = 0; i < 2; i++) c->streams[i].head = command->head;
    int theirs[4] = {-1, -1, -1, -1}, status = -1;
    bool ok = pair(&c->status, &status, true) && pair(&c->streams[0].fd, &theirs[1], true) &&
              pair(&c->streams[1].fd, &theirs[2], true);
    if (ok && c->flags & F_STDIN) ok = pair(&c->in, &theirs[0], false);
    if (ok && !(c->flags & F_STDIN)) ok = (theirs[0] = noted(open("/dev/null", O_RDONLY | O_CLOEXEC))) >= 0;
    if (ok && c->flags & F_REPORT) ok = pair(&c->report, &theirs[3], true);
    pid_t pid = ok ? fork_expendable() : -1;
    if (pid == 0) supervise(command, status, theirs);
    int failure = errno;
    for (int i = 0; i < 4; i++) close_fd(&theirs[i]);
    close_fd(&status);
    if (pid < 0) {
        release(c);
        refuse(id, P_RESOURCES, failure);
        return;
    }
    c->supervisor = pid;
}

/* A connection to the proxy's port: a channel without a process, whose id the runner chooses. */
void channel_accept(int listener) {
    static uint32_t next = 0x80000000u;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    struct channel *c = channel_new(next | 0x80000000u);
    if (!c) {
        close(fd);
        return;
    }
    next++;
    c->flags = F_STREAM | F_STDIN;
    c->window = 4 * CHUNK;
    c->streams[0].fd = noted(fd);
    c->in = noted(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    send_frame(c->id, ACCEPT, NULL, 0);
}

void channel_input(struct channel *c, const uint8_t *data, size_t length) {
    if (c->in < 0 || c->in_closing) return;
    if (c->input.length + length > STDIN_MAX) _exit(76); /* the controller broke the protocol */
    buffer_add(&c->input, data, length);
    channel_write(c);
}

void channel_write(struct channel *c) {
    uint64_t taken = 0;
    while (c->in >= 0 && c->input.length) {
        size_t want = c->input.length < CHUNK ? c->input.length : CHUNK;
        ssize_t n = write(c->in, c->input.data + c->input.start, want);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (n < 0) { /* nobody reads any more */
            taken += c->input.length;
            buffer_drop(&c->input, c->input.length);
            close_fd(&c->in);
            break;
        }
        taken += (uint64_t)n;
        buffer_drop(&c->input, (size_t)n);
    }
    if (taken) {
        uint8_t payload[8];
        put64(payload, taken);
        send_frame(c->id, ACK, payload, 8);
    }
    if (c->in_closing && !c->input.length && c->in >= 0) {
        if (!c->supervisor) shutdown(c->in, SHUT_WR); /* a socket's other direction lives on */
        close_fd(&c->in);
    }
}

static void keep(struct channel *c, struct stream *s, const uint8_t *data, size_t length) {
    size_t room = (size_t)c->tail_limit;
    if (!room) {
        s->dropped += length;
        return;
    }
    if (!s->ring) s->ring = must(malloc(room));
    if (length > room) {
        s->dropped += length - room;
        data += length - room;
        length = room;
    }
    size_t overflow = s->ring_length + length > room ? s->ring_length + length - room : 0;
    s->dropped += overflow;
    s->ring_at = (s->ring_at + overflow) % room;
    s->ring_length -= overflow;
    size_t at = (s->ring_at + s->ring_length) % room, first = length < room - at ? length : room - at;
    memcpy(s->ring + at, data, first);
    memcpy(s->ring, data + first, length - first);
    s->ring_length += length;
}

static void send_tail(struct channel *c, int which) {
    struct stream *s = &c->streams[which];
    while (s->ring_length) {
        size_t n = (size_t)c->tail_limit - s->ring_at;
        if (n > s->ring_length) n = s->ring_length;
        if (n > CHUNK) n = CHUNK;
        send_frame(c->id, which ? ERR : OUT, s->ring + s->ring_at, n);
        s->ring_at = (s->ring_at + n) % (size_t)c->tail_limit;
        s->ring_length -= n;
    }
}

/* Read once. Streams under flow control stop at their window; others are bounded by head and tail. */
void channel_read(struct channel *c, int which) {
    static uint8_t chunk[CHUNK];
    struct stream *s = &c->streams[which];
    size_t want = CHUNK;
    if (c->flags & F_STREAM && which == 0 && c->window < want) want = (size_t)c->window;
    if (s->fd < 0 || !want) return;
    ssize_t n = read(s->fd, chunk, want);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close_fd(&s->fd);
        if (!c->supervisor && !c->closing) channel_finish(c); /* a connection that was closed */
        return;
    }
    size_t length = (size_t)n;
    s->total += length;
    if (c->flags & F_STREAM && which == 0) {
        c->window -= length;
        send_frame(c->id, OUT, chunk, length);
        return;
    }
    size_t head = length < s->head ? length : (size_t)s->head;
    if (head) send_frame(c->id, which ? ERR : OUT, chunk, head);
    s->head -= head;
    if (length > head) keep(c, s, chunk + head, length - head);
}

static void drain(struct channel *c, int which) {
    /* Bounded: what a pipe can hold, and not what its writer goes on to write. */
    for (int i = 0; i < 32 && c->streams[which].fd >= 0; i++) {
        uint64_t before = c->streams[which].total;
        channel_read(c, which);
        if (c->streams[which].total == before) break;
    }
}

/* The command wrote to descriptor 3: a mark between what it printed before and after. Bounds start anew. */
void channel_report(struct channel *c) {
    uint8_t payload[16 + 4096];
    ssize_t n = read(c->report, payload + 16, sizeof payload - 16);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close_fd(&c->report);
        return;
    }
    for (int i = 0; i < 2; i++) {
        drain(c, i);
        send_tail(c, i);
        put64(payload + 8 * i, c->streams[i].dropped);
        c->streams[i].dropped = 0;
        c->streams[i].head = c->head_limit;
    }
    send_frame(c->id, REPORT, payload, 16 + (size_t)n);
}

/* Take one message from the supervisor; false when there is none (left). */
bool channel_status(struct channel *c) {
    struct verdict v;
    if (c->status < 0) return false;
    ssize_t n = read(c->status, &v, sizeof v);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n != sizeof v) {
        close_fd(&c->status);
        return false;
    }
    if (v.what == V_STARTED) {
        c->leader = v.a;
        return true;
    }
    if (v.what == V_STOPPED || v.what == V_CONTINUED) {
        c->stopped = v.what == V_CONTINUED || c->may_stop ? 0 : now_us() + (c->builtin ? 0 : STOPPED_US);
        return true;
    }
    if (c->ended) return true; /* what failed to start has also ended: the first word counts */
    c->ended = true;
    c->how = v.what == V_FAILED ? NOT_STARTED : (uint8_t)v.a;
    c->phase = v.what == V_FAILED ? (uint8_t)v.a : 0;
    c->code = v.b;
    return true;
}

/* End a command now: without its supervisor its processes are strays, and strays are killed. */
void channel_stop(struct channel *c) {
    if (c->supervisor) kill(c->supervisor, SIGKILL);
    else if (!c->closing) channel_finish(c);
}

void channel_finish(struct channel *c) {
    while (channel_status(c)) continue;
    if (c->late) {
        c->how = c->late;
        c->code = 0;
    } else if (!c->ended) { /* somebody killed the supervisor: a command's own doing, or the controller's wish */
        c->how = SIGNALED;
        c->code = SIGKILL;
    }
    if (c->flags & F_STREAM) c->window = 32 * (uint64_t)CHUNK; /* the controller has room for a pipe's worth */
    for (int i = 0; i < 2; i++) {
        drain(c, i);
        send_tail(c, i);
    }
    uint8_t payload[48] = {c->how, oom_kills() > c->oom_before, c->phase, 0};
    put32(payload + 4, (uint32_t)c->code);
    put64(payload + 8, (uint64_t)(now_us() - c->started));
    for (int i = 0; i < 2; i++) {
        put64(payload + 16 + 16 * i, c->streams[i].total);
        put64(payload + 24 + 16 * i, c->streams[i].dropped);
    }
    send_frame(c->id, EXIT, payload, sizeof payload);
    release(c);
}
