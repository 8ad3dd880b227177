/* Makes each fsync, fdatasync and write to a file opened with O_DSYNC of a process take DELAY_MS longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void wait_longer(void) {
    struct timespec delay = {DELAY_MS / 1000, DELAY_MS % 1000 * 1000000L};
    nanosleep(&delay, 0);
}

static void wait_if_synced(int file) {
    int flags = fcntl(file, F_GETFL);
    if (flags != -1 && (flags & O_DSYNC)) wait_longer();
}

int fsync(int file) {
    NEXT(fsync);
    wait_longer();
    return next(file);
}

int fdatasync(int file) {
    NEXT(fdatasync);
    wait_longer();
    return next(file);
}

ssize_t write(int file, const void *bytes, size_t count) {
    NEXT(write);
    wait_if_synced(file);
    return next(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(writev);
    wait_if_synced(file);
    return next(file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t place) {
    NEXT(pwrite64);
    wait_if_synced(file);
    return next(file, bytes, count, place);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t place) {
    NEXT(pwritev64);
    wait_if_synced(file);
    return next(file, parts, count, place);
}
