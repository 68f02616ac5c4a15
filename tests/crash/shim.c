/* What a process asks of the system below one folder: written down, and on demand refused, cut short, or its end.

   Preloaded (LD_PRELOAD) into a process that forks children; a child arms it with a plan. From then on every call that
   can change what lies below the folder, or that opens, maps, locks or closes something there, gets a number from 1, and
   takes its turn: calls of several threads never overlap, so the order in the log is the order on the disk.

   Which file a descriptor means is asked of the system each time (/proc/self/fd), so a file that was renamed has its new
   name, one that was removed ends in " (deleted)", and copies of descriptors need no book-keeping.

   Sees only what goes through the dynamic symbols of libc: not its inner calls (fopen, opendir), nor raw system calls. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "paths.h"

#if !defined(__LP64__) || !defined(__linux__)
#error "offsets are passed to the system in one register, as 64-bit Linux takes them"
#endif

/* The names of calls.py, in its order. */
enum { OPEN, WRITE, TRUNCATE, FSYNC, FDATASYNC, RENAME, UNLINK, RMDIR, MKDIR, MMAP, CLOSE, MARK, FLOCK, RANGE };
enum { LIVES, BEFORE, AFTER, MIDWAY }; /* when it kills itself: midway means that half of a write is out */
enum { SHORT = -1 };                   /* instead of an error */

struct plan {               /* Plan in recorder.py */
    const char *folder;     /* absolute, without links */
    const void *sqlite;     /* anything inside the library of SQLite; NULL when it cannot be told from the rest */
    int64_t fatal;          /* number of the call at which the process dies */
    int64_t failing;        /* number of the call that fails, if it is of a kind that can; with sticky the first */
    int32_t log;            /* descriptor; -1 for none */
    int32_t moment;         /* LIVES, BEFORE, AFTER or MIDWAY */
    int32_t error;          /* errno or SHORT */
    int32_t sticky;         /* whether all later calls of these kinds fail, until it relents */
    uint32_t kinds;         /* bits of the names that can fail; an open only when it makes a file */
    int32_t bare;           /* whether what was written is left out of the log */
};

struct call {
    int name, descriptor, flags, error, sqlite;
    int trouble; /* what the plan has for it: 0, errno or SHORT */
    int64_t number, offset, length;
    const void *data;
    size_t data_length;
    char path[PATH_MAX], target[PATH_MAX];
};

static struct plan plan;
static int64_t count;
static volatile int armed, relented, pretending;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

#define CALLER __builtin_return_address(0)

/* Whether a call is one to write down; fills in its path. Keeps errno. */
static int watched(struct call *call, int directory, const char *path) {
    if (!armed)
        return 0;
    int error = errno;
    char absolute[PATH_MAX];
    int known = path ? resolve(directory, path, absolute) : of_descriptor(directory, absolute);
    const char *found = known ? inside(absolute) : NULL;
    errno = error;
    memset(call, 0, offsetof(struct call, path));
    call->target[0] = 0;
    call->descriptor = path ? -1 : directory;
    if (found)
        strcpy(call->path, found);
    return found != NULL;
}

/* A call's turn */

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

static int fatal(const struct call *call, int at) { return plan.moment == at && call->number == plan.fatal; }

static int by_sqlite(const void *caller) {
    Dl_info theirs, its;
    return plan.sqlite && dladdr(caller, &theirs) && dladdr(plan.sqlite, &its) && theirs.dli_fbase == its.dli_fbase;
}

/* Begin: number it, perhaps die, and say what trouble it is in for. `can_fail` is 0 for calls that take no space. */
static int begin(struct call *call, int name, const void *caller, int can_fail) {
    int sqlite = by_sqlite(caller);
    pthread_mutex_lock(&turn);
    call->name = name;
    call->sqlite = sqlite;
    call->number = ++count;
    if (fatal(call, BEFORE))
        die();
    int due = plan.sticky ? call->number >= plan.failing : call->number == plan.failing;
    if (plan.failing && due && !relented && can_fail && (plan.kinds >> name & 1))
        call->trouble = plan.error;
    return call->trouble > 0;
}

static void put(const void *bytes, size_t length) {
    while (length) {
        ssize_t written = syscall(SYS_write, plan.log, bytes, length);
        if (written <= 0)
            abort(); /* a log with holes would be believed */
        bytes = (const char *)bytes + written;
        length -= written;
    }
}

static void note(const struct call *call) {
    struct __attribute__((packed)) {
        uint32_t magic;
        uint8_t name, sqlite;
        uint16_t path, target;
        int32_t descriptor, flags, error;
        int64_t offset, length;
        uint64_t data;
    } head = {0x6b766673, call->name, call->sqlite, strlen(call->path), strlen(call->target), call->descriptor, call->flags,
              call->error, call->offset, call->length, plan.bare ? 0 : call->data_length};
    if (plan.log < 0)
        return;
    put(&head, sizeof head);
    put(call->path, head.path);
    put(call->target, head.target);
    put(call->data, head.data);
}

/* End: write it down, perhaps die, and hand back what the system, or the trouble, said. */
static long end(struct call *call, long result) {
    int error = result < 0 ? errno : 0;
    call->error = error;
    note(call);
    if (fatal(call, AFTER) || fatal(call, MIDWAY))
        die();
    pthread_mutex_unlock(&turn);
    if (result < 0)
        errno = error;
    return result;
}

static long refused(struct call *call) {
    errno = call->trouble;
    return end(call, -1);
}

/* Names */

static int opened(int directory, const char *path, int flags, mode_t mode, const void *caller) {
    struct call call;
    if (!watched(&call, directory, path))
        return syscall(SYS_openat, directory, path, flags, mode);
    struct stat found;
    int makes = (flags & O_CREAT) && fstatat(directory, path, &found, AT_SYMLINK_NOFOLLOW) < 0;
    call.flags = flags;
    if (begin(&call, OPEN, caller, makes))
        return refused(&call);
    return end(&call, call.descriptor = syscall(SYS_openat, directory, path, flags, mode));
}

static int renamed(int from, const char *old, int to, const char *new, unsigned flags, const void *caller) {
    struct call call;
    char absolute[PATH_MAX];
    int leaves = watched(&call, from, old), arrives = armed && resolve(to, new, absolute) && inside(absolute);
    if (!leaves && !arrives)
        return syscall(SYS_renameat2, from, old, to, new, flags);
    if (!leaves)
        snprintf(call.path, sizeof call.path, "%s", old);
    snprintf(call.target, sizeof call.target, "%s", arrives ? inside(absolute) : new);
    if (begin(&call, RENAME, caller, 1))
        return refused(&call);
    return end(&call, syscall(SYS_renameat2, from, old, to, new, flags));
}

static int removed(int directory, const char *path, int flags, const void *caller) {
    struct call call;
    if (!watched(&call, directory, path))
        return syscall(SYS_unlinkat, directory, path, flags);
    if (begin(&call, flags & AT_REMOVEDIR ? RMDIR : UNLINK, caller, 1))
        return refused(&call);
    return end(&call, syscall(SYS_unlinkat, directory, path, flags));
}

static int made(int directory, const char *path, mode_t mode, const void *caller) {
    struct call call;
    if (!watched(&call, directory, path))
        return syscall(SYS_mkdirat, directory, path, mode);
    if (begin(&call, MKDIR, caller, 1))
        return refused(&call);
    return end(&call, syscall(SYS_mkdirat, directory, path, mode));
}

/* Content */

/* `at` is -1 for a write where the file stands. */
static ssize_t written(int descriptor, const void *data, size_t length, off_t at, const void *caller) {
    struct call call;
    if (!watched(&call, descriptor, NULL))
        return at < 0 ? syscall(SYS_write, descriptor, data, length) : syscall(SYS_pwrite64, descriptor, data, length, at);
    int hopeless = begin(&call, WRITE, caller, 1);
    call.offset = at < 0 ? lseek(descriptor, 0, SEEK_CUR) : at;
    if (hopeless)
        return refused(&call);
    if ((call.trouble == SHORT || fatal(&call, MIDWAY)) && length > 1)
        length /= 2;
    long result = at < 0 ? syscall(SYS_write, descriptor, data, length) : syscall(SYS_pwrite64, descriptor, data, length, at);
    if (result > 0) {
        call.offset = at < 0 ? lseek(descriptor, 0, SEEK_CUR) - result : at; /* an appending file moves first */
        call.length = call.data_length = result;
        call.data = data;
    }
    return end(&call, result);
}

static ssize_t gathered(int descriptor, const struct iovec *pieces, int number, off_t at, const void *caller) {
    size_t length = 0, done = 0;
    for (int i = 0; i < number; i++)
        length += pieces[i].iov_len;
    char *whole = malloc(length + 1);
    for (int i = 0; whole && i < number; done += pieces[i++].iov_len)
        memcpy(whole + done, pieces[i].iov_base, pieces[i].iov_len);
    ssize_t result = written(descriptor, whole, length, at, caller);
    free(whole);
    return result;
}

static int resized(int descriptor, const char *path, off_t length, const void *caller) {
    struct call call;
    int known = watched(&call, path ? AT_FDCWD : descriptor, path);
    if (known) {
        struct stat found;
        int grows = (path ? stat(path, &found) : fstat(descriptor, &found)) == 0 && found.st_size < length;
        call.length = length;
        if (begin(&call, TRUNCATE, caller, grows || plan.error == EIO || plan.error == EROFS))
            return refused(&call);
    }
    long result = path ? syscall(SYS_truncate, path, length) : syscall(SYS_ftruncate, descriptor, length);
    return known ? end(&call, result) : result;
}

/* Written down as the length that the file has then. */
static int allocated(int descriptor, int mode, off_t offset, off_t length, const void *caller) {
    struct call call;
    struct stat found;
    if (!watched(&call, descriptor, NULL))
        return syscall(SYS_fallocate, descriptor, mode, offset, length);
    if (begin(&call, TRUNCATE, caller, 1))
        return refused(&call);
    long result = syscall(SYS_fallocate, descriptor, mode, offset, length);
    call.length = fstat(descriptor, &found) == 0 ? found.st_size : 0;
    return end(&call, result);
}

static int synced(int descriptor, int name, long number, const void *caller) {
    struct call call;
    int known = watched(&call, descriptor, NULL);
    if (known && begin(&call, name, caller, 1))
        return refused(&call);
    long result = syscall(pretending ? SYS_fcntl : number, descriptor, F_GETFD); /* a sync has one argument */
    return known ? end(&call, result < 0 ? -1 : 0) : result < 0 ? -1 : 0;
}

static void *mapped(void *address, size_t length, int prot, int flags, int descriptor, off_t offset, const void *caller) {
    struct call call;
    if (descriptor < 0 || !watched(&call, descriptor, NULL))
        return (void *)syscall(SYS_mmap, address, length, prot, flags, descriptor, offset);
    int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    call.offset = offset;
    call.length = length;
    call.flags = prot | shared << 8;
    begin(&call, MMAP, caller, 0);
    return (void *)end(&call, syscall(SYS_mmap, address, length, prot, flags, descriptor, offset));
}

/* What libc offers */

#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode, CALLER); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode, CALLER); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode, CALLER); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0, CALLER); }
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0, CALLER); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0, CALLER); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return renamed(from, old, to, new, flags, CALLER);
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0, CALLER); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, flags, CALLER); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR, CALLER); }
int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode, CALLER); }
int mkdirat(int at, const char *path, mode_t mode) { return made(at, path, mode, CALLER); }
ssize_t write(int file, const void *data, size_t length) { return written(file, data, length, -1, CALLER); }
ssize_t pwrite(int file, const void *data, size_t length, off_t at) { return written(file, data, length, at, CALLER); }
ssize_t writev(int file, const struct iovec *pieces, int number) { return gathered(file, pieces, number, -1, CALLER); }
ssize_t pwritev(int file, const struct iovec *pieces, int number, off_t at) {
    return gathered(file, pieces, number, at, CALLER);
}
ssize_t pwritev2(int file, const struct iovec *pieces, int number, off_t at, int flags) {
    (void)flags; /* how soon and how, not what */
    return gathered(file, pieces, number, at, CALLER);
}
int ftruncate(int file, off_t length) { return resized(file, NULL, length, CALLER); }
int truncate(const char *path, off_t length) { return resized(-1, path, length, CALLER); }
int fallocate(int file, int mode, off_t at, off_t length) { return allocated(file, mode, at, length, CALLER); }
int posix_fallocate(int file, off_t at, off_t length) { return allocated(file, 0, at, length, CALLER) ? errno : 0; }
int fsync(int file) { return synced(file, FSYNC, SYS_fsync, CALLER); }
int fdatasync(int file) { return synced(file, FDATASYNC, SYS_fdatasync, CALLER); }
int sync_file_range(int file, off_t at, off_t length, unsigned flags) {
    struct call call;
    int known = watched(&call, file, NULL);
    if (known && begin(&call, RANGE, CALLER, 0))
        return refused(&call);
    long result = syscall(SYS_sync_file_range, file, at, length, flags);
    return known ? end(&call, result) : result;
}
void *mmap(void *address, size_t length, int prot, int flags, int file, off_t at) {
    return mapped(address, length, prot, flags, file, at, CALLER);
}
int flock(int file, int operation) {
    struct call call;
    int known = watched(&call, file, NULL);
    call.flags = operation;
    if (known)
        begin(&call, FLOCK, CALLER, 0);
    long result = syscall(SYS_flock, file, operation);
    return known ? end(&call, result) : result;
}
int close(int file) {
    struct call call;
    int known = watched(&call, file, NULL);
    if (known)
        begin(&call, CLOSE, CALLER, 0);
    long result = syscall(SYS_close, file);
    return known ? end(&call, result) : result;
}

/* Where offsets have 64 bits anyway, libc has two names for the same. */
#define ALSO(other, name) extern __typeof__(name) other __attribute__((alias(#name)));
ALSO(open64, open) ALSO(openat64, openat) ALSO(creat64, creat) ALSO(__open64_2, __open_2) ALSO(mmap64, mmap)
ALSO(pwrite64, pwrite) ALSO(pwritev64, pwritev) ALSO(pwritev64v2, pwritev2)
ALSO(ftruncate64, ftruncate) ALSO(truncate64, truncate) ALSO(fallocate64, fallocate)
ALSO(posix_fallocate64, posix_fallocate)

/* What recorder.py calls */

int softkv_recorder_arm(const struct plan *given) {
    plan = *given;
    snprintf(folder, sizeof folder, "%s", given->folder);
    count = 0;
    relented = 0;
    armed = 1;
    return sizeof plan;
}

/* From now on syncs only look whether the file is open: where nobody pulls the plug that changes nothing but time. */
void softkv_recorder_pretend(void) { pretending = 1; }

void softkv_recorder_disarm(void) { armed = 0; }

/* The space is back, the disk is whole: nothing fails any more, and all is written down as before. */
void softkv_recorder_relent(void) { relented = 1; }

int64_t softkv_recorder_count(void) { return count; }

void softkv_recorder_mark(const char *text) {
    struct call call;
    if (!armed)
        return;
    memset(&call, 0, offsetof(struct call, target));
    call.descriptor = -1;
    snprintf(call.target, sizeof call.target, "%s", text);
    begin(&call, MARK, NULL, 0);
    end(&call, 0);
}
