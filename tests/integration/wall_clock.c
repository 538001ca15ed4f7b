/* A wall clock that a file moves: seconds, read at each look. Only the interpreter's own looks are
   moved; libraries that wait until a wall time would wait for the difference, which no jump of a
   real clock does to them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int by_interpreter(void *caller) {
    Dl_info info;
    const char *name;
    if (!dladdr(caller, &info) || info.dli_fname == NULL) return 0;
    name = strrchr(info.dli_fname, '/');
    name = name == NULL ? info.dli_fname : name + 1;
    return strncmp(name, "python", 6) == 0 || strncmp(name, "libpython", 9) == 0;
}

static long moved(void *caller) {
    char text[32] = {0};
    const char *path = getenv("LUXRELAY_TEST_CLOCK");
    int file;
    if (path == NULL || !by_interpreter(caller)) return 0;
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    int result;
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += moved(__builtin_return_address(0));
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    int result;
    if (real == NULL) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    result = real(now, zone);
    if (result == 0) now->tv_sec += moved(__builtin_return_address(0));
    return result;
}

time_t time(time_t *where) {
    struct timespec now;
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_REALTIME, &now);
    now.tv_sec += moved(__builtin_return_address(0));
    if (where != NULL) *where = now.tv_sec;
    return now.tv_sec;
}
