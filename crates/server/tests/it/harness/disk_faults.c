/* Disk calls that fail, for one process: a library loaded in front of the C library.
 *
 * DISK_FAULTS names a file with one rule a line; it is read again at every call that a rule could concern, so that a
 * test changes the weather by writing the file. Calls on files outside the folder DISK_FAULTS_BENEATH are left alone.
 *
 *   sync fail ERROR      every flush fails          sync slow MILLISECONDS   every flush takes that much longer
 *   write fail ERROR     every write fails          write torn ERROR         writes do half of their work, then fail
 *   create fail ERROR    no new file can be made
 *
 * ERROR is EIO or ENOSPC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum mode { WELL, FAIL, SLOW, TORN };
struct rule {
    enum mode mode;
    int error;
    long milliseconds;
};

/* The rule for one kind of call, read with raw system calls so that it cannot meet itself. */
static struct rule rule_for(const char *kind) {
    struct rule rule = {WELL, 0, 0};
    const char *path = getenv("DISK_FAULTS");
    if (path == NULL) return rule;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return rule;
    char text[512];
    long length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    text[length > 0 ? length : 0] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char subject[16], mode[16], value[16];
        if (sscanf(line, "%15s %15s %15s", subject, mode, value) != 3 || strcmp(subject, kind) != 0) continue;
        rule.mode = strcmp(mode, "fail") == 0 ? FAIL : strcmp(mode, "torn") == 0 ? TORN : SLOW;
        rule.error = strcmp(value, "ENOSPC") == 0 ? ENOSPC : EIO;
        rule.milliseconds = atol(value);
    }
    return rule;
}

static int path_concerned(const char *path) {
    const char *beneath = getenv("DISK_FAULTS_BENEATH");
    return beneath != NULL && strncmp(path, beneath, strlen(beneath)) == 0;
}

static int file_concerned(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return path_concerned(path);
}

#define NEXT(result, name, ...)                                                                                        \
    static result (*next)(__VA_ARGS__);                                                                                \
    if (next == NULL) next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* True if a flush of this file must fail; errno says how. Sleeps where it must be slow. */
static int sync_fails(int file) {
    struct rule rule = rule_for("sync");
    if (rule.mode == WELL || !file_concerned(file)) return 0;
    if (rule.mode == SLOW) {
        struct timespec pause = {rule.milliseconds / 1000, rule.milliseconds % 1000 * 1000000};
        nanosleep(&pause, NULL);
        return 0;
    }
    errno = rule.error;
    return 1;
}

int fsync(int file) { NEXT(int, "fsync", int); return sync_fails(file) ? -1 : next(file); }
int fdatasync(int file) { NEXT(int, "fdatasync", int); return sync_fails(file) ? -1 : next(file); }
int syncfs(int file) { NEXT(int, "syncfs", int); return sync_fails(file) ? -1 : next(file); }
int sync_file_range(int file, off64_t from, off64_t count, unsigned flags) {
    NEXT(int, "sync_file_range", int, off64_t, off64_t, unsigned);
    return sync_fails(file) ? -1 : next(file, from, count, flags);
}

/* How many bytes of a write of `count` may be done; -1 if none, with errno set. A write to a file opened with O_DSYNC
 * is a flush as well. */
static ssize_t write_allowance(int file, size_t count) {
    static __thread int torn;
    int flags = fcntl(file, F_GETFL);
    if (flags != -1 && (flags & O_DSYNC) && sync_fails(file)) return -1;
    struct rule rule = rule_for("write");
    if (rule.mode == WELL || !file_concerned(file)) return count;
    if (rule.mode == TORN && !torn && count > 1) {
        torn = 1;
        return count / 2;
    }
    torn = 0;
    errno = rule.error;
    return -1;
}

#define WRITE(name, offset_type)                                                                                       \
    ssize_t name(int file, const void *bytes, size_t count, offset_type offset) {                                      \
        NEXT(ssize_t, #name, int, const void *, size_t, offset_type);                                                  \
        ssize_t allowed = write_allowance(file, count);                                                                \
        return allowed < 0 ? -1 : next(file, bytes, allowed, offset);                                                  \
    }
WRITE(pwrite, off_t)
WRITE(pwrite64, off64_t)

ssize_t write(int file, const void *bytes, size_t count) {
    NEXT(ssize_t, "write", int, const void *, size_t);
    ssize_t allowed = write_allowance(file, count);
    return allowed < 0 ? -1 : next(file, bytes, allowed);
}

/* A vector is torn behind its first part. */
static int parts_allowed(int file, const struct iovec *parts, int count) {
    size_t total = 0;
    for (int part = 0; part < count; part++) total += parts[part].iov_len;
    ssize_t allowed = write_allowance(file, total);
    return allowed < 0 ? -1 : (size_t)allowed < total ? 1 : count;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(ssize_t, "writev", int, const struct iovec *, int);
    int allowed = parts_allowed(file, parts, count);
    return allowed < 0 ? -1 : next(file, parts, allowed);
}

#define WRITE_PARTS(name, offset_type)                                                                                 \
    ssize_t name(int file, const struct iovec *parts, int count, offset_type offset) {                                 \
        NEXT(ssize_t, #name, int, const struct iovec *, int, offset_type);                                             \
        int allowed = parts_allowed(file, parts, count);                                                               \
        return allowed < 0 ? -1 : next(file, parts, allowed, offset);                                                  \
    }
WRITE_PARTS(pwritev, off_t)
WRITE_PARTS(pwritev64, off64_t)

static int create_fails(const char *path, int flags) {
    if (!(flags & O_CREAT)) return 0;
    struct rule rule = rule_for("create");
    if (rule.mode != FAIL || !path_concerned(path) || access(path, F_OK) == 0) return 0;
    errno = rule.error;
    return 1;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        NEXT(int, #name, const char *, int, ...);                                                                      \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return create_fails(path, flags) ? -1 : next(path, flags, mode);                                               \
    }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name)                                                                                                  \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        NEXT(int, #name, int, const char *, int, ...);                                                                 \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return create_fails(path, flags) ? -1 : next(folder, path, flags, mode);                                       \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
