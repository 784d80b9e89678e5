/* What the kernel does when the container's memory is full: whom it kills, and how often it has killed.
 *
 * It kills the process with the highest score, which is its memory plus an adjustment. Anybody may raise an adjustment, and
 * lower it to a bound that is inherited. So the runner takes the lowest that it may have, and commands start at the
 * highest: they are killed first, whatever size they have. That they can't lower their own is Landlock's doing: from the
 * runner's start on nothing below /proc can be opened for writing, by the runner or by what it starts, and the runner
 * holds its own adjustment open from before. */
#include "runner.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/syscall.h>

#define FIRST_TO_DIE 1000
#define NEVER (-1000)

/* Landlock, which older headers lack; its calls have these numbers on every architecture. */
enum { CREATE_RULESET = 444, ADD_RULE, RESTRICT_SELF };
#define VERSION_FLAG 1u
#define PATH_BENEATH 1
#define OPEN_FOR_WRITING (1ull << 1)
#define MOVE_BETWEEN_FOLDERS (1ull << 13) /* denied unless allowed; no version before 2 can allow it */
struct ruleset { uint64_t files; };
struct path_rule { uint64_t allowed; int32_t parent; } __attribute__((packed));

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

static bool allow_below(int rules, int folder, const char *name) {
    int at = openat(folder, name, O_PATH | O_CLOEXEC);
    if (at < 0) return true; /* a link that leads nowhere */
    struct path_rule rule = {OPEN_FOR_WRITING | MOVE_BETWEEN_FOLDERS, at};
    bool added = !syscall(ADD_RULE, rules, PATH_BENEATH, &rule, 0);
    rule.allowed = OPEN_FOR_WRITING; /* all that a file can have */
    added = added || !syscall(ADD_RULE, rules, PATH_BENEATH, &rule, 0);
    close(at);
    return added;
}

/* Allow to write below every entry of the root but /proc: rules can only allow, and hold for all that lies below. Message
 * queues are opened in a mount that lies nowhere, and share the folder that /dev/mqueue shows. */
static bool allow_all_but_proc(int rules) {
    DIR *root = opendir("/");
    bool complete = root && allow_below(rules, AT_FDCWD, "/dev/mqueue");
    for (struct dirent *entry; complete && (entry = readdir(root));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "proc"))
            complete = allow_below(rules, dirfd(root), entry->d_name);
    if (root) closedir(root);
    return complete;
}

static bool has_capabilities(void) {
    uint32_t header[2] = {0x20080522, 0}, sets[6] = {0}; /* version 3: effective, permitted, inheritable, twice */
    return syscall(SYS_capget, header, sets) || sets[0] || sets[3];
}

/* Close all scores to what is started from now on, in one domain, so that commands see each other as before. Not where
 * commands may do what Landlock would take from them: mount file systems, or make new entries of the root. */
void lock_scores(void) {
    struct ruleset all = {OPEN_FOR_WRITING | MOVE_BETWEEN_FOLDERS};
    if (score_file < 0 || has_capabilities() || !access("/", W_OK) || syscall(CREATE_RULESET, NULL, 0, VERSION_FLAG) < 2) return;
    int rules = (int)syscall(CREATE_RULESET, &all, sizeof all, 0);
    if (rules < 0) return;
    if (allow_all_but_proc(rules)) syscall(RESTRICT_SELF, rules, 0);
    close(rules);
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
