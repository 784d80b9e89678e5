/* The resident runner: runs a container's commands, one poll loop, one stream to the controller.
 *
 * It is the container's first process and runs as the sandboxed user, with nothing that user doesn't have. What
 * protects it: the kernel drops signals that a namespace's first process has no handler for (SIGKILL and SIGSTOP
 * too), being undumpable closes its memory and descriptors to everyone, the seccomp profile refuses to change
 * other processes' limits and priorities, and the kernel kills others first when memory is full (memory.c). It reads no file, no environment and no output for what a command's end
 * was: that comes from wait(2) alone. When the stream ends, or the controller stays silent for the lease, it ends,
 * and the container with it. */
#include "runner.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MAX_LISTENERS 4
#define GIVE_UP_US 5000000 /* strays that won't die (in the kernel's hands) hold up their channel no longer … */
#define GIVE_UP_PASSES 200 /* … but a machine that was busy for so long has not tried yet */

static struct buffer inbox;
static int listeners[MAX_LISTENERS], listener_count;
static bool killing;
static int dead, passes; /* of this killing: dead strays at its last pass (-1: some lived), and its passes */
static int64_t killing_since, lease_us = 300 * 1000000ll, heard;

static void listen_on(uint32_t id, const uint8_t *payload) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)get32(payload))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = listener_count < MAX_LISTENERS ? socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1, one = 1;
    uint8_t reply[4];
    bool ok = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
              !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 32);
    put32(reply, ok ? 0 : (uint32_t)errno);
    if (ok) listeners[listener_count++] = noted(fd);
    else if (fd >= 0) close(fd);
    send_frame(id, LISTEN, reply, 4);
}

static void signal_command(struct channel *c, int number) {
    if (number == SIGKILL) channel_stop(c);
    else if (c->leader > 0 && !c->ended) {
        c->may_stop = number != SIGCONT && (c->may_stop || number == SIGSTOP || number == SIGTSTP);
        kill(-c->leader, number);
    }
}

static void handle(uint32_t id, uint32_t type, uint8_t *payload, uint32_t length) {
    struct channel *c = channel_find(id);
    struct command command;
    uint8_t ready[8];
    switch (type) {
    case HELLO:
        if (length < 8) _exit(76);
        lease_us = (int64_t)get32(payload + 4) * 1000;
        put32(ready, PROTOCOL);
        put32(ready + 4, (uint32_t)getpid());
        send_frame(0, READY, ready, 8);
        break;
    case EXEC:
        if (!parse_command(payload, length, &command)) _exit(76);
        channel_start(id, &command);
        free(command.argv);
        break;
    case STDIN: if (c) channel_input(c, payload, length); break;
    case STDIN_EOF:
        if (c) {
            c->in_closing = true;
            channel_write(c);
        }
        break;
    case SIGNAL: if (c && length == 4) signal_command(c, (int)get32(payload)); break;
    case WINDOW: if (c && length == 8) c->window += get64(payload); break;
    case PING: send_frame(id, PONG, payload, length); break;
    case LIMIT:
        if (c && length == 8) {
            c->tells = true;
            clock_start(c, get64(payload));
        }
        break;
    case LISTEN: if (length == 4) listen_on(id, payload); break;
    default: _exit(76);
    }
}

static void take_frames(void) {
    while (inbox.length >= HEADER) {
        uint8_t *h = inbox.data + inbox.start;
        uint32_t length = get32(h + 16);
        if (!nonce) nonce = get64(h);
        if (get64(h) != nonce || length > MAX_IN) _exit(76);
        if (inbox.length < HEADER + length) return;
        handle(get32(h + 8), get32(h + 12), h + HEADER, length);
        buffer_drop(&inbox, HEADER + length);
    }
}

static void read_controller(void) {
    static uint8_t chunk[CHUNK];
    ssize_t n = read(0, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) _exit(0);
    heard = now_us();
    buffer_add(&inbox, chunk, (size_t)n);
    take_frames();
}

static void supervisor_gone(struct channel *c) {
    c->supervisor = 0;
    c->closing = true;
    if (!killing) {
        killing = true;
        dead = passes = 0;
        killing_since = now_us();
    }
}

static void reap(void) {
    for (int i = 0; i < MAX_CHANNELS; i++) {
        struct channel *c = &channels[i];
        int result;
        if (!c->used || !c->supervisor || waitpid(c->supervisor, &result, WNOHANG | WUNTRACED) != c->supervisor) continue;
        if (WIFSTOPPED(result)) channel_stop(c);
        else supervisor_gone(c);
    }
    if (!killing) { /* strays' zombies stay while strays are killed: they hold slots */
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            for (int i = 0; i < MAX_CHANNELS; i++)
                if (channels[i].used && channels[i].supervisor == pid) supervisor_gone(&channels[i]);
    }
}

/* One pass over the strays; when there are none, the channels whose trees they were are over.
 *
 * None alive in one pass proves nothing: a process that forks and exits between the listing and its reading looks dead,
 * and its child is not listed. But then it has died since the last pass, and dead strays are not reaped meanwhile: as
 * many of them as in the last pass mean that nobody lived in between. */
static void kill_pass(void) {
    int before = dead;
    dead = kill_strays();
    bool over = dead >= 0 && dead == before;
    if (!over && (++passes < GIVE_UP_PASSES || now_us() - killing_since < GIVE_UP_US)) return;
    killing = false;
    for (int i = 0; i < MAX_CHANNELS; i++)
        if (channels[i].used && channels[i].closing) channel_finish(&channels[i]);
    reap();
}

static int wait_ms(int64_t now) {
    int64_t until = heard + lease_us;
    if (killing) return dead < 0 ? 1 : 0;
    for (int i = 0; i < MAX_CHANNELS; i++)
        if (channels[i].used && !channels[i].closing) {
            struct channel *c = &channels[i];
            if (c->clock.limit && c->clock.next < until) until = c->clock.next;
            if (c->stopped && c->stopped < until) until = c->stopped;
        }
    return until <= now ? 0 : (int)((until - now) / 1000) + 1;
}

static void check_deadlines(int64_t now) {
    if (now - heard > lease_us) _exit(0);
    for (int i = 0; i < MAX_CHANNELS; i++) {
        struct channel *c = &channels[i];
        if (c->used && !c->closing && c->stopped && now >= c->stopped) {
            c->stopped = 0;
            channel_stop(c);
            continue;
        }
        if (!c->used || !c->clock.limit || now < c->clock.next || c->closing) continue;
        uint8_t late = clock_look(c, now);
        if (!late) continue;
        c->clock.limit = 0;
        while (channel_status(c)) continue;
        if (c->ended) continue;
        if (c->tells) {
            send_frame(c->id, LATE, &late, 1);
            continue;
        }
        c->late = late;
        channel_stop(c);
    }
}

struct interest { struct channel *c; enum { I_OUT, I_ERR, I_REPORT, I_STATUS, I_IN } what; };

static int gather(struct pollfd *fds, struct interest *interests, int from) {
    int n = from;
    bool full = outbox.length > QUEUE_SOFT;
    for (int i = 0; i < MAX_CHANNELS; i++) {
        struct channel *c = &channels[i];
        if (!c->used || c->closing) continue;
        bool window = !(c->flags & F_STREAM) || c->window;
        int wanted[5] = {full || !window ? -1 : c->streams[0].fd, full ? -1 : c->streams[1].fd, full ? -1 : c->report,
                         c->status, c->input.length ? c->in : -1};
        for (int w = 0; w < 5; w++) {
            if (wanted[w] < 0) continue;
            interests[n] = (struct interest){c, w};
            fds[n++] = (struct pollfd){.fd = wanted[w], .events = w == I_IN ? POLLOUT : POLLIN};
        }
    }
    return n;
}

static void serve(struct interest *i) {
    if (!i->c->used) return;
    if (i->what == I_OUT || i->what == I_ERR) channel_read(i->c, i->what == I_ERR);
    else if (i->what == I_REPORT) channel_report(i->c);
    else if (i->what == I_STATUS) channel_status(i->c);
    else channel_write(i->c);
}

int main(void) {
    sigset_t child;
    alone = getpid() == 1;
    protect_from_oom();
    lock_scores();
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int ended = noted(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    fcntl(1, F_SETFL, O_NONBLOCK);
    heard = now_us();
    oom_kills();
    static struct pollfd fds[3 + MAX_LISTENERS + 5 * MAX_CHANNELS];
    static struct interest interests[3 + MAX_LISTENERS + 5 * MAX_CHANNELS];
    for (;;) {
        bool stuck = outbox.length > 4 * QUEUE_SOFT; /* the controller does not read: hear nothing more from it */
        fds[0] = (struct pollfd){.fd = stuck ? -1 : 0, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = outbox.length ? 1 : -1, .events = POLLOUT};
        fds[2] = (struct pollfd){.fd = ended, .events = POLLIN};
        int first = 3;
        for (int i = 0; i < listener_count; i++) fds[first++] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
        int count = gather(fds, interests, first);
        if (poll(fds, (nfds_t)count, wait_ms(now_us())) < 0 && errno != EINTR) _exit(70);
        if (fds[0].revents) read_controller();
        for (int i = 3; i < first; i++)
            if (fds[i].revents) channel_accept(fds[i].fd);
        for (int i = first; i < count; i++)
            if (fds[i].revents) serve(&interests[i]);
        if (fds[2].revents & POLLIN) {
            struct signalfd_siginfo info;
            while (read(ended, &info, sizeof info) > 0) continue;
        }
        if (fds[2].revents || killing) reap();
        check_deadlines(now_us());
        if (killing) kill_pass();
        if (outbox.length && !flush_outbox()) _exit(0);
    }
}
