/* Files, without any program of the image: each runs in a forked child, confined like a command. */
#include "runner.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

int write_all(int fd, const void *data, size_t length) {
    for (const char *at = data; length;) {
        ssize_t n = write(fd, at, length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        at += n;
        length -= (size_t)n;
    }
    return 0;
}

/* Bytes read, short only at the end of input; -1 on an error. */
int read_all(int fd, void *data, size_t length) {
    size_t have = 0;
    while (have < length) {
        ssize_t n = read(fd, (char *)data + have, length - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        have += (size_t)n;
    }
    return (int)have;
}

int make_parents(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        int failed = mkdir(path, 0755) < 0 && errno != EEXIST ? errno : 0;
        *slash = '/';
        if (failed == EROFS || failed == EACCES) failed = 0; /* the last word is the file's own open */
        if (failed) return failed;
    }
    return 0;
}

static int read_file(const char *path, uint64_t offset, uint64_t limit) {
    static char chunk[CHUNK];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hold us up */
    if (fd < 0) return errno;
    if (fstat(fd, &st) < 0) return errno;
    if (S_ISDIR(st.st_mode)) return EISDIR;
    if (!S_ISREG(st.st_mode)) return EINVAL;
    if (offset && lseek(fd, (off_t)offset, SEEK_SET) < 0) return errno;
    while (limit) {
        ssize_t n = read(fd, chunk, limit < CHUNK ? (size_t)limit : CHUNK);
        if (n < 0) return errno;
        if (n == 0) break;
        int failed = write_all(1, chunk, (size_t)n);
        if (failed) return failed;
        limit -= (uint64_t)n;
    }
    return 0;
}

/* Beside it and renamed, so that nobody sees half a file. */
static int write_file(char *path, mode_t mode) {
    static char chunk[CHUNK];
    char beside[4200];
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return EISDIR;
    int failed = make_parents(path);
    if (failed) return failed;
    if (snprintf(beside, sizeof beside, "%s.%d~", path, getpid()) >= (int)sizeof beside) return ENAMETOOLONG;
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    for (int n; !failed && (n = read_all(0, chunk, CHUNK)) != 0;) failed = n < 0 ? errno : write_all(fd, chunk, (size_t)n);
    if (!failed && (fchmod(fd, mode) < 0 || close(fd) < 0 || rename(beside, path) < 0)) failed = errno;
    if (failed) unlink(beside);
    return failed;
}

/* Empty one directory: files go, directories move up to `top`. 0, or what stood in the way. */
static int flatten(int directory, int top) {
    static unsigned long moved;
    char name[64];
    int failed = 0;
    DIR *list = fdopendir(directory);
    if (!list) return errno;
    for (struct dirent *e; (e = readdir(list));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || unlinkat(dirfd(list), e->d_name, 0) == 0) continue;
        fchmodat(dirfd(list), e->d_name, 0700, 0);
        snprintf(name, sizeof name, ".agentrl-%d-%lu", getpid(), moved++);
        if (renameat(dirfd(list), e->d_name, top, name) < 0) failed = errno;
    }
    closedir(list);
    return failed;
}

/* Remove all that is below a directory, however deep, with three descriptors: levels are pulled up one by one. */
int remove_below(int top) {
    for (int failed = 0;;) {
        int found = 0, again = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *list = again < 0 ? NULL : fdopendir(again);
        if (!list) return errno;
        for (struct dirent *e; (e = readdir(list));) {
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            found++;
            if (unlinkat(top, e->d_name, 0) == 0 || unlinkat(top, e->d_name, AT_REMOVEDIR) == 0) continue;
            fchmodat(top, e->d_name, 0700, 0);
            int below = openat(top, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            failed = below < 0 ? errno : flatten(below, top);
            if (failed || unlinkat(top, e->d_name, AT_REMOVEDIR) == 0) continue;
            failed = errno;
        }
        closedir(list);
        if (!found || failed) return failed;
    }
}

int run_builtin(struct command *c) {
    switch (c->kind) {
    case READ_FILE: return c->argc < 3 ? EINVAL : read_file(c->argv[0], strtoull(c->argv[1], NULL, 10), strtoull(c->argv[2], NULL, 10));
    case WRITE_FILE: return write_file(c->argv[0], (mode_t)c->mode);
    case TAR_OUT: return tar_out(c->argv[0]);
    case TAR_IN: return tar_in(c->argv[0]);
    case WIPE: return wipe(c);
    case DESCRIBE: return describe(c);
    }
    return ENOSYS;
}
