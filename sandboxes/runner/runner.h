/* The resident runner: what its parts share. The protocol is described in docs/decisions/archive/021. */
#ifndef AGENTRL_RUNNER_H
#define AGENTRL_RUNNER_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PROTOCOL 3
#define HEADER 20                /* nonce u64, channel u32, type u32, length u32; little endian */
#define MAX_IN (1u << 20)        /* the longest frame that the controller may send */
#define CHUNK 65536u             /* the longest frame that we send, and what one read takes */
#define QUEUE_SOFT (1u << 20)    /* above this many unsent bytes, no output of a command is read */
#define STDIN_MAX (2u << 20)     /* input that a command has not taken; the controller keeps far below it */
#define MAX_CHANNELS 64
#define STOPPED_US 5000000       /* a command that nobody continues for so long is ended */
#define BUSY 60                  /* a command that waits for processors gets so many times its limit */

enum frame {
    HELLO = 1, EXEC, STDIN, STDIN_EOF, SIGNAL, WINDOW, PING, LISTEN, LIMIT,       /* from the controller */
    READY = 65, OUT, ERR, REPORT, EXIT, ACK, PONG, ACCEPT, LATE, WAITED           /* to the controller */
};
enum kind { RUN = 0, READ_FILE, WRITE_FILE, TAR_OUT, TAR_IN, WIPE, DESCRIBE };
enum flags { F_STREAM = 1, F_REPORT = 2, F_STDIN = 4 };
enum how { EXITED = 0, SIGNALED, TIMED_OUT, NOT_STARTED, STARVED };
enum phase { P_RESOURCES = 0, P_CWD, P_EXEC };

struct buffer { uint8_t *data; size_t start, length, room; };

/* A stream of a command: what was read goes out until `head` is used up, then the last `tail` bytes are kept. */
struct stream {
    int fd;
    uint64_t head, total, dropped;
    uint8_t *ring;
    size_t ring_at, ring_length;
};

/* The time that counts towards a limit (clock.c), in microseconds. */
struct clock {
    int64_t limit;               /* 0 for none */
    int64_t began, looked, next; /* of CLOCK_MONOTONIC */
    int64_t runnable, ran;       /* the time in which a process of the command could run, and in which one did */
    int64_t told;                /* what of its waiting the controller knows */
    int64_t total;               /* what all of them had computed at the last look */
};

struct channel {
    bool used;
    uint32_t id;
    uint8_t flags;
    pid_t supervisor;            /* 0 once it has been reaped */
    pid_t leader;                /* the command itself, as its supervisor announced it */
    int in, status;
    bool in_closing, closing;    /* end of input came; the supervisor is gone and its remains are being killed */
    struct buffer input;
    struct stream streams[2];
    int report;
    uint64_t head_limit, tail_limit, window;
    int64_t started;             /* microseconds of CLOCK_MONOTONIC */
    struct clock clock;
    uint64_t oom_before;
    int64_t stopped;             /* when the command has been stopped too long; 0 while it runs */
    bool builtin, may_stop;      /* the controller itself has asked for a stop */
    bool tells;                  /* the end of its time is told, and does not end it */
    bool ended;                  /* the supervisor has said how */
    uint8_t late;                /* TIMED_OUT or STARVED: its time was up before it ended */
    uint8_t how, phase;
    int32_t code;
};

struct process { pid_t pid, parent; bool dead, can_run; long threads; int64_t ticks; }; /* ticks: reaped children's, too */

struct command {                 /* a parsed EXEC frame; pointers lead into the frame */
    uint8_t kind, flags;
    uint32_t mode;
    uint64_t timeout, head, tail;
    uint32_t argc, envc;
    char *cwd, **argv, **env;
};

struct verdict { int32_t what, a, b; };          /* supervisor to runner; shorter than PIPE_BUF, so atomic */
enum { V_STARTED = 1, V_FAILED, V_ENDED, V_STOPPED, V_CONTINUED };

/* wire.c */
extern uint64_t nonce;
extern struct buffer outbox;
int64_t now_us(void);
void *must(void *pointer);
void buffer_add(struct buffer *b, const void *data, size_t length);
void buffer_drop(struct buffer *b, size_t length);
void send_frame(uint32_t channel, uint32_t type, const void *payload, size_t length);
bool flush_outbox(void);
bool parse_command(uint8_t *payload, size_t length, struct command *command);
uint32_t get32(const uint8_t *p);
uint64_t get64(const uint8_t *p);
void put32(uint8_t *p, uint32_t value);
void put64(uint8_t *p, uint64_t value);

/* channel.c */
extern struct channel channels[MAX_CHANNELS];
extern int highest_fd;
int noted(int fd);
void close_fd(int *fd);
struct channel *channel_find(uint32_t id);
struct channel *channel_new(uint32_t id);
void channel_start(uint32_t id, struct command *command);
void channel_accept(int listener);
void channel_input(struct channel *c, const uint8_t *data, size_t length);
void channel_write(struct channel *c);
void channel_read(struct channel *c, int which);
void channel_report(struct channel *c);
bool channel_status(struct channel *c);
void channel_stop(struct channel *c);
void channel_finish(struct channel *c);

/* tree.c */
extern bool alone;               /* whether we are a container's first process, and all that runs is below us */
void supervise(struct command *command, int status, const int stdio[4]);
int kill_strays(void);
int other_processes(bool end);
bool read_process(const char *name, struct process *p);
size_t list_processes(struct process **table);
pid_t branch_of(const struct process *p, struct process *all, size_t count);

/* clock.c */
void clock_start(struct channel *c, uint64_t limit);
enum how clock_look(struct channel *c, int64_t now);

/* memory.c */
void protect_from_oom(void);
void lock_scores(void);
pid_t fork_expendable(void);
uint64_t oom_kills(void);

/* builtins.c, empty.c, tar.c: run in a child of the supervisor, as the sandboxed user; the result is an exit code (errno) */
int run_builtin(struct command *command);
int write_all(int fd, const void *data, size_t length);
int read_all(int fd, void *data, size_t length);
int make_parents(char *path);
int remove_below(int directory);
int tar_out(const char *path);
int tar_in(const char *directory);
int describe(struct command *command);
int wipe(struct command *command);

#endif
