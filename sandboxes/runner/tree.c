/* Process trees: each command has a supervisor, and what no supervisor answers for is killed.
 *
 * The supervisor is a fork of the runner that adopts every orphan below it (PR_SET_CHILD_SUBREAPER): whatever a
 * command starts, with setsid or a double fork, stays below its supervisor. When the command ends, so does the
 * supervisor, and what it leaves falls to the runner, which is the next reaper above. A process below the runner
 * and below no living supervisor is a stray. Killing the supervisor is therefore how a tree is ended, and a
 * command that kills its own supervisor only ends itself.
 *
 * Stopping is no way to hold a sandbox: a supervisor that is stopped is killed, as nobody of ours would stop one, and a
 * command that is stopped, and that nothing continues, ends after a few seconds.
 *
 * Strays are not reaped while they are being killed: each zombie holds a slot of the process limit, so a fork bomb
 * runs out of slots and the killing ends. */
#include "runner.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

bool alone;

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

bool read_process(const char *name, struct process *p) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%.40s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) return false;
    line[n] = 0;
    char *after = strrchr(line, ')'); /* a program's name may hold anything, brackets too */
    char state;
    unsigned long user, kernel;
    long user_below, kernel_below;
    if (!after || sscanf(after + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld %*d %*d %ld", &state,
                         &p->parent, &user, &kernel, &user_below, &kernel_below, &p->threads) != 7) return false;
    p->pid = atoi(name);
    p->dead = state == 'Z' || state == 'X';
    p->can_run = state == 'R';
    p->ticks = (int64_t)(user + kernel) + user_below + kernel_below;
    return true;
}

size_t list_processes(struct process **table) {
    static struct process *all;
    static size_t room;
    size_t count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
        if (count == room) all = must(realloc(all, (room = room * 2 + 64) * sizeof *all));
        if (read_process(e->d_name, &all[count])) count++;
    }
    if (proc) closedir(proc);
    if (count) qsort(all, count, sizeof *all, by_pid);
    *table = all;
    return count;
}

static bool supervises(pid_t pid) {
    for (int i = 0; i < MAX_CHANNELS; i++)
        if (channels[i].used && channels[i].supervisor == pid) return true;
    return false;
}

/* The ancestor (or self) of `p` that is a child of ours; 0 where there is none. */
pid_t branch_of(const struct process *p, struct process *all, size_t count) {
    pid_t self = getpid();
    for (int depth = 0; p && depth < 100000; depth++) {
        if (p->parent == self) return p->pid;
        struct process key = {.pid = p->parent};
        p = bsearch(&key, all, count, sizeof *all, by_pid);
    }
    return 0;
}

/* One pass of killing strays: how many of them are dead, or -1 where one was alive. */
int kill_strays(void) {
    struct process *all;
    size_t count = list_processes(&all);
    int dead = 0;
    bool alive = false;
    for (size_t i = 0; i < count; i++) {
        pid_t branch = branch_of(&all[i], all, count);
        if (!branch || supervises(branch)) continue;
        if (all[i].dead) {
            dead++;
            continue;
        }
        kill(all[i].pid, SIGKILL);
        alive = true;
    }
    return alive ? -1 : dead;
}

/* Processes alive besides the runner, this builtin and its supervisor, whoever started them; killed where asked. */
int other_processes(bool end) {
    struct process *all;
    size_t count = list_processes(&all);
    int others = 0;
    for (size_t i = 0; i < count; i++) {
        if (all[i].dead || all[i].pid == 1 || all[i].pid == getpid() || all[i].pid == getppid()) continue;
        others++;
        if (end) kill(all[i].pid, SIGKILL);
    }
    return others;
}

static void say(int status, int32_t what, int32_t a, int32_t b) {
    struct verdict v = {what, a, b};
    if (write(status, &v, sizeof v) < 0) _exit(1);
}

static void become(struct command *c, int status, const int stdio[4]) {
    int high[4];
    setsid();
    for (int i = 0; i < 4; i++) high[i] = stdio[i] < 0 ? -1 : fcntl(stdio[i], F_DUPFD_CLOEXEC, 10);
    int said = fcntl(status, F_DUPFD_CLOEXEC, 10);
    for (int i = 0; i < 4; i++)
        if (high[i] >= 0) dup2(high[i], i);
    if (high[3] < 0) close(3);
    signal(SIGPIPE, SIG_DFL);
    if (*c->cwd && chdir(c->cwd) < 0) {
        say(said, V_FAILED, P_CWD, errno);
        _exit(1);
    }
    if (c->kind != RUN) {
        signal(SIGXFSZ, SIG_IGN); /* a file too long is an error to report, and to clean up after */
        _exit(run_builtin(c));
    }
    for (uint32_t i = 0; i < c->envc; i++) putenv(c->env[i]);
    execvp(c->argv[0], c->argv);
    say(said, V_FAILED, P_EXEC, errno);
    _exit(127);
}

/* The supervisor's whole life. It holds nothing but the pipe on which it says how its command ended. */
void supervise(struct command *c, int status, const int stdio[4]) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int fd = 0; fd <= highest_fd; fd++)
        if (fd != 2 && fd != status && fd != stdio[0] && fd != stdio[1] && fd != stdio[2] && fd != stdio[3]) close(fd);
    pid_t leader = fork();
    if (leader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        become(c, status, stdio);
    }
    if (leader < 0) {
        say(status, V_FAILED, P_RESOURCES, errno);
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        if (stdio[i] >= 0) close(stdio[i]);
    say(status, V_STARTED, leader, 0);
    for (;;) {
        int result;
        pid_t pid = waitpid(-1, &result, WUNTRACED | WCONTINUED);
        if (pid < 0 && errno == ECHILD) _exit(1);
        if (pid != leader) continue;
        if (WIFSTOPPED(result) || WIFCONTINUED(result)) {
            say(status, WIFSTOPPED(result) ? V_STOPPED : V_CONTINUED, 0, 0);
            continue;
        }
        if (WIFEXITED(result)) say(status, V_ENDED, EXITED, WEXITSTATUS(result));
        else say(status, V_ENDED, SIGNALED, WTERMSIG(result));
        _exit(0);
    }
}
