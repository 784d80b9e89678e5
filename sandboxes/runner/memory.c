/* What the kernel does when the container's memory is full: whom it kills, and how often it has killed.
 *
 * It kills the process with the highest score, which is its memory plus an adjustment. Anybody may raise an adjustment, and
 * lower it to a bound that is inherited. So the runner takes the lowest that it may have, and commands start at the
 * highest: they are killed first, whatever size they have. A command that lowers its own comes down to the runner's at
 * best, where size decides, and the runner is the smallest that runs for long. */
#include "runner.h"

#include <stdio.h>

#define FIRST_TO_DIE 1000
#define NEVER (-1000)

static int score_file = -1, lowest;

static bool adjust(int score) {
    char text[16];
    int length = snprintf(text, sizeof text, "%d", score);
    return score_file >= 0 && pwrite(score_file, text, (size_t)length, 0) == length;
}

/* Take the lowest adjustment that the kernel grants. Before the process becomes undumpable: its files are root's then. */
void protect_from_oom(void) {
    char text[16] = "";
    score_file = alone ? open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC) : -1;
    if (score_file < 0 || pread(score_file, text, sizeof text - 1, 0) <= 0) return;
    noted(score_file);
    lowest = atoi(text);
    for (int refused = NEVER - 1, middle; lowest - refused > 1;) {
        middle = refused + (lowest - refused) / 2;
        if (adjust(middle)) lowest = middle;
        else refused = middle;
    }
    adjust(lowest);
}

/* Fork a process that the kernel kills before this one. A child has its parent's adjustment, so it is raised meanwhile:
 * a child could not be trusted to raise its own in time. */
pid_t fork_expendable(void) {
    adjust(FIRST_TO_DIE);
    pid_t pid = fork();
    int failure = errno;
    if (pid) adjust(lowest);
    errno = failure;
    return pid;
}

/* How often the kernel has killed for memory in this container's cgroup (version 2 or 1). */
uint64_t oom_kills(void) {
    static int fd = -2;
    if (fd == -2) {
        fd = alone ? open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0 && alone) fd = open("/sys/fs/cgroup/memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) noted(fd);
    }
    char text[512];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strstr(text, "oom_kill ");
    return at ? strtoull(at + 9, NULL, 10) : 0;
}
