/* Which path a call means, and whether it lies below the folder that is watched. Part of shim.c. */

static char folder[PATH_MAX]; /* absolute, without links */

/* Take "//", "." and ".." out of an absolute path, in place. */
static void tidy(char *path) {
    char *out = path, *in = path;
    while (*in) {
        size_t length = strcspn(in + 1, "/");
        if (length == 2 && in[1] == '.' && in[2] == '.')
            while (out > path && *--out != '/')
                ;
        else if (length && !(length == 1 && in[1] == '.')) {
            memmove(out, in, length + 1);
            out += length + 1;
        }
        in += length + 1;
    }
    *out = 0;
}

/* The part of an absolute path below the folder, "" for itself; NULL when it lies elsewhere. */
static const char *inside(const char *path) {
    size_t length = strlen(folder);
    if (strncmp(path, folder, length) || (path[length] && path[length] != '/'))
        return NULL;
    return path[length] ? path + length + 1 : path + length;
}

static int of_descriptor(int descriptor, char *absolute) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, name, absolute, PATH_MAX - 1);
    absolute[length > 0 ? length : 0] = 0;
    return length > 0 && absolute[0] == '/';
}

static int resolve(int directory, const char *path, char *absolute) {
    size_t length = 0;
    if (path[0] != '/') {
        if (directory != AT_FDCWD ? !of_descriptor(directory, absolute) : syscall(SYS_getcwd, absolute, PATH_MAX) < 0)
            return 0;
        length = strlen(absolute);
        absolute[length++] = '/';
    }
    if (length + strlen(path) >= PATH_MAX)
        return 0;
    strcpy(absolute + length, path);
    tidy(absolute);
    return 1;
}
