/* A command's clock: the time that counts towards its limit, which is not the time that passes.
 *
 * What a command waits for a processor that others have is not its own doing, so it does not count: the same program has
 * the same end on a quiet machine and on a busy one. Counted is what it computes, and what it sleeps or waits for
 * anything else. The clock looks at the command's processes some fifty times within the limit: where one of them can run,
 * they computed or waited for a processor since the last look, and the kernel tells how long they computed; the rest of
 * that time they waited. A command can't add to it by keeping its own processes from each other: then one of them
 * computes. Looks come at irregular moments, so that none can be expected.
 *
 * A command that has waited for so long that BUSY times its limit has passed has no result: the machine is to blame. */
#include "runner.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>

#define LOOKS 64
#define LEAST_US 10000
#define MOST_US 1000000
#define TELL_US 250000 /* the controller hears of so much waiting at a time: deadlines around the command move on by it */

/* Open a file of the container's cgroup, version 2; its path is / but where the daemon shows containers the whole tree. */
static int open_in_cgroup(const char *name) {
    char text[1024], path[1200];
    int fd = alone ? open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *at = strstr(text, "0::/");
    if (!at) return -1;
    snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/%s", (int)strcspn(at + 3, "\n"), at + 3, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Microseconds that the container has computed (cgroup version 2 or 1): in it nothing can hide from that. */
static int64_t container_cpu(void) {
    static int fd = -2;
    static bool nanoseconds;
    if (fd == -2) {
        fd = open_in_cgroup("cpu.stat");
        if (fd < 0 && alone) {
            fd = open("/sys/fs/cgroup/cpuacct/cpuacct.usage", O_RDONLY | O_CLOEXEC);
            nanoseconds = true;
        }
        if (fd >= 0) noted(fd);
    }
    char text[1024];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return -1;
    text[n] = 0;
    if (nanoseconds) return strtoll(text, NULL, 10) / 1000;
    char *at = strstr(text, "usage_usec ");
    return at ? strtoll(at + 11, NULL, 10) : -1;
}

static int64_t number_in(int fd) {
    char text[64];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *rest;
    int64_t first = strtoll(text, &rest, 10), second = strtoll(rest, NULL, 10);
    return second > 0 ? (first + second - 1) / second : first; /* version 2's quota and period, as cores */
}

/* How many processors commands can have at once: the container's quota, else what the kernel grants this process. */
static int processors(void) {
    static int cores;
    if (cores) return cores;
    int64_t quota = number_in(open_in_cgroup("cpu.max"));
    if (quota <= 0 && alone) {
        int64_t period = number_in(open("/sys/fs/cgroup/cpu/cpu.cfs_period_us", O_RDONLY | O_CLOEXEC));
        int64_t granted = number_in(open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", O_RDONLY | O_CLOEXEC));
        quota = period > 0 ? (granted + period - 1) / period : -1;
    }
    cpu_set_t set;
    cores = sched_getaffinity(0, sizeof set, &set) < 0 ? 1 : CPU_COUNT(&set);
    return cores = quota > 0 && quota < cores ? (int)quota : cores;
}

/* How many threads of a process can run. */
static int runnable_threads(const struct process *p) {
    char path[64];
    int can_run = 0;
    if (p->threads < 2) return p->can_run;
    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *tasks = opendir(path);
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        struct process thread;
        snprintf(path, sizeof path, "%d/task/%.16s", p->pid, e->d_name);
        can_run += e->d_name[0] != '.' && read_process(path, &thread) && thread.can_run;
    }
    if (tasks) closedir(tasks);
    return can_run;
}

/* Microseconds that a command has computed so far, and how many of its threads can run. */
static int64_t computed(const struct channel *c, int *can_run) {
    struct process *all;
    size_t count = list_processes(&all);
    int64_t ticks = 0, container = container_cpu();
    for (size_t i = 0; i < count; i++) {
        struct process *p = &all[i];
        if (p->dead || branch_of(p, all, count) != c->supervisor) continue;
        ticks += p->ticks;
        *can_run += runnable_threads(p);
    }
    return container >= 0 ? container : ticks * 1000000 / sysconf(_SC_CLK_TCK);
}

static int64_t until_next_look(int64_t limit) {
    static uint32_t random = 1;
    random = random * 1664525u + 1013904223u + (uint32_t)now_us();
    int64_t step = limit / LOOKS;
    step = step < LEAST_US ? LEAST_US : step > MOST_US ? MOST_US : step;
    return step / 2 + step * (random >> 16) / 65536;
}

/* Begin to count; a limit of 0 is none. */
void clock_start(struct channel *c, uint64_t limit) {
    int can_run = 0;
    int64_t now = now_us();
    c->clock = (struct clock){.limit = (int64_t)limit, .began = now, .looked = now};
    if (!limit) return;
    c->clock.total = c->supervisor ? computed(c, &can_run) : container_cpu();
    if (c->clock.total < 0) c->clock.total = 0;
    c->clock.next = now + until_next_look(c->clock.limit);
}

/* Look at a command; how its time is up, or 0 where it is not. */
enum how clock_look(struct channel *c, int64_t now) {
    struct clock *k = &c->clock;
    int can_run = 0, most = processors();
    int64_t total = computed(c, &can_run);
    k->ran += (total - k->total) / (can_run < 2 ? 1 : can_run < most ? can_run : most);
    if (can_run) k->runnable += now - k->looked;
    k->total = total;
    k->looked = now;
    int64_t waited = k->runnable > k->ran ? k->runnable - k->ran : 0, left = k->limit - (now - k->began - waited);
    if (waited >= k->told + TELL_US) {
        uint8_t payload[8];
        put64(payload, (uint64_t)(waited - k->told));
        send_frame(c->id, WAITED, payload, 8);
        k->told = waited;
    }
    if (left <= 0) return TIMED_OUT;
    if (now - k->began >= BUSY * k->limit) return STARVED;
    int64_t step = until_next_look(k->limit);
    k->next = now + (left < step ? (left < 1000 ? 1000 : left) : step);
    return 0;
}
