/* Emptying a sandbox, and a description of it that proves whether it is empty.
 *
 * A description is text, a line for each thing in which a command could leave something: the writable directories (mode,
 * owner, extended attributes and ACLs, flags, entries, used inodes and blocks, a file made and written to try it out),
 * System V objects, sockets (those too that have no process any more), processes, and mounts that can be written to and
 * that nobody named. The controller asks for one before the first command, and takes a sandbox for empty only where
 * the description after emptying is the same, byte for byte. */
#include "runner.h"

#include <dirent.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#define MQUEUE_MAGIC 0x19800202
#define OWNERS_FLAGS 0xff /* secrm, unrm, compr, sync, immutable, append, nodump, noatime; the others are the file system's */

static const char *const IPC[] = {"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"};
static const char *const SOCKETS[] = {"tcp", "tcp6", "udp", "udp6", "unix", "ip6_flowlabel"};

/* By the kernel's list, which names objects of every mode; SHM_STAT and its like leave out what can't be read. */
static void remove_ipc(void) {
    char line[512];
    for (int kind = 0; kind < 3; kind++) {
        FILE *list = fopen(IPC[kind], "re");
        for (int id; list && fgets(line, sizeof line, list);) {
            if (sscanf(line, "%*d %d", &id) != 1) continue; /* the heading */
            if (kind == 0) shmctl(id, IPC_RMID, NULL);
            else if (kind == 1) semctl(id, 0, IPC_RMID);
            else msgctl(id, IPC_RMID, NULL);
        }
        if (list) fclose(list);
    }
}

static void remove_attributes(int directory) {
    static char names[65536];
    int flags = 0;
    ssize_t length = flistxattr(directory, names, sizeof names);
    for (char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) fremovexattr(directory, name);
    if (ioctl(directory, FS_IOC_GETFLAGS, &flags) == 0 && flags & OWNERS_FLAGS) {
        flags &= ~OWNERS_FLAGS;
        ioctl(directory, FS_IOC_SETFLAGS, &flags);
    }
}

/* The mode that a directory was made with: the controller knows it, and says so as a variable, PATH=MODE in octal. */
static mode_t mode_of(struct command *c, const char *path) {
    size_t length = strlen(path);
    for (uint32_t i = 0; i < c->envc; i++)
        if (!strncmp(c->env[i], path, length) && c->env[i][length] == '=') return (mode_t)strtoul(c->env[i] + length + 1, NULL, 8) & 07777;
    return 0755;
}

/* Empty one writable directory, and give it back the mode, group and attributes that it was made with. */
static int empty_tree(const char *path, mode_t mode) {
    char itself[64];
    struct stat st;
    int handle = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), failed = 0;
    if (handle < 0) return errno == ENOENT ? 0 : errno;
    bool ours = fstat(handle, &st) == 0 && st.st_uid == geteuid();
    snprintf(itself, sizeof itself, "/proc/self/fd/%d", handle);
    if (ours && chmod(itself, 0700) < 0) failed = errno; /* a mode without reading must not keep us out */
    int directory = openat(handle, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) failed = errno;
    else {
        if (ours) remove_attributes(directory);
        int status = remove_below(directory);
        if (status) failed = status;
        if (ours && (fchown(directory, (uid_t)-1, getegid()) < 0 || fchmod(directory, mode) < 0)) failed = errno;
        if (ours) futimens(directory, NULL);
        close(directory);
    }
    close(handle);
    return failed;
}

static int count_entries(int directory) {
    int count = 0, again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    if (!list) return -errno;
    for (struct dirent *e; (e = readdir(list));) count += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(list);
    return count;
}

/* Make, write, read and remove a file: the mode it got, or minus an error. */
static int try_out(int directory) {
    char name[64], seen[4] = {0};
    struct stat st = {0};
    snprintf(name, sizeof name, ".agentrl-probe-%d", getpid());
    int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    bool ok = write_all(fd, "seen", 4) == 0 && pread(fd, seen, 4, 0) == 4 && !memcmp(seen, "seen", 4) && fstat(fd, &st) == 0;
    int failed = errno;
    close(fd);
    if (unlinkat(directory, name, 0) < 0) return -errno;
    return ok ? (int)st.st_mode : -failed;
}

static void describe_tree(const char *path) {
    struct stat st;
    struct statfs fs;
    int flags = 0, directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 || fstat(directory, &st) < 0 || fstatfs(directory, &fs) < 0) {
        dprintf(1, "%s: %s\n", path, strerror(errno));
        return;
    }
    ioctl(directory, FS_IOC_GETFLAGS, &flags);
    dprintf(1, "%s: mode %o, owner %u:%u, attributes %zd, flags %x, entries %d", path, st.st_mode, st.st_uid, st.st_gid,
            flistxattr(directory, NULL, 0), (unsigned)flags, count_entries(directory));
    if (alone) dprintf(1, ", inodes %llu, blocks %llu", (unsigned long long)(fs.f_files - fs.f_ffree),
                       (unsigned long long)(fs.f_blocks - fs.f_bfree));
    if (fs.f_type != MQUEUE_MAGIC) dprintf(1, ", probe %o", (unsigned)try_out(directory));
    dprintf(1, "\n");
    close(directory);
}

static long count_lines(const char *path) {
    char line[1024];
    long count = 0;
    FILE *list = fopen(path, "re");
    if (!list) return -1;
    while (fgets(line, sizeof line, list)) count += strchr(line, '\n') != NULL;
    fclose(list);
    return count;
}

/* Mounts that this user can write to, besides those that the controller knows and has emptied. */
static void describe_mounts(struct command *c) {
    char line[4096], path[4096];
    FILE *list = fopen("/proc/self/mounts", "re");
    while (list && fgets(line, sizeof line, list)) {
        struct stat st;
        bool known = false;
        if (sscanf(line, "%*s %4095s", path) != 1) continue;
        for (uint32_t i = 0; i < c->argc; i++) known = known || !strcmp(path, c->argv[i]);
        if (known || access(path, W_OK) < 0 || stat(path, &st) < 0 || S_ISCHR(st.st_mode)) continue;
        dprintf(1, "writable %s\n", path);
    }
    if (list) fclose(list);
}

int describe(struct command *c) {
    for (uint32_t i = 0; i < c->argc; i++) describe_tree(c->argv[i]);
    if (!alone) return 0; /* the rest would be the machine's */
    dprintf(1, "processes %d\n", other_processes(false));
    for (int i = 0; i < 3; i++) dprintf(1, "%s %ld\n", IPC[i], count_lines(IPC[i]));
    for (size_t i = 0; i < sizeof SOCKETS / sizeof *SOCKETS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/net/%s", SOCKETS[i]);
        dprintf(1, "%s %ld\n", path, count_lines(path));
    }
    describe_mounts(c);
    return 0;
}

/* Leave nothing to the next session, and describe what there is now. */
int wipe(struct command *c) {
    int failed = 0;
    for (int pass = 0; alone && pass < 100 && other_processes(true); pass++) usleep(2000);
    if (alone) remove_ipc();
    for (uint32_t i = 0; i < c->argc; i++) {
        int status = empty_tree(c->argv[i], mode_of(c, c->argv[i]));
        if (status) failed = status;
    }
    return failed ? failed : describe(c);
}
