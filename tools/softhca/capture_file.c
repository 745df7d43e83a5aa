/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"
#include "capture/pcapng.h"

#define STREAM_BUFFER (1u << 20)

bool capture_files_is_stdout(const struct capture_files *files)
{
    return strcmp(files->name, "-") == 0;
}

/* As dumpcap(1) does: the number stands in front of the last part of the name. */
static void name_of(const struct capture_files *files, uint64_t number, char *ret, size_t size)
{
    const char *slash = strrchr(files->name, '/'), *dot = strrchr(files->name, '.');
    const size_t stem =
        dot && dot > (slash ? slash + 1 : files->name) ? (size_t)(dot - files->name) : strlen(files->name);

    if (files->size)
        snprintf(ret, size, "%.*s_%05llu%s", (int)stem, files->name, (unsigned long long)number,
                 files->name + stem);
    else
        snprintf(ret, size, "%s", files->name);
}

static int fail(const char *what, const char *name, int error)
{
    fprintf(stderr, "softhca: cannot %s %s: %s\n", what, name, strerror(error));
    return -error;
}

static int open_present(struct capture_files *files)
{
    char name[PATH_MAX];
    int fd = STDOUT_FILENO;

    name_of(files, files->number, name, sizeof(name));
    /* The file has what programs send each other: for the user alone. */
    if (!capture_files_is_stdout(files))
        fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    files->file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!files->file)
        return fail("write", name, errno);
    setvbuf(files->file, NULL, _IOFBF, STREAM_BUFFER);
    files->interfaces = 0;
    pcapng_section(files->file, "softhca " SOFTHCA_VERSION);
    return 0;
}

int capture_files_open(struct capture_files *files)
{
    files->number = 1;
    return open_present(files);
}

int capture_files_close(struct capture_files *files)
{
    int error;

    if (!files->file)
        return 0; /* it could not be made, and that was said */
    error = ferror(files->file) ? EIO : 0;
    if (fclose(files->file) != 0)
        error = errno;
    files->file = NULL;
    return error ? fail("write", capture_files_is_stdout(files) ? "standard output" : files->name, error) : 0;
}

static void remove_oldest(const struct capture_files *files)
{
    char name[PATH_MAX];

    if (!files->count || files->number <= files->count)
        return;
    name_of(files, files->number - files->count, name, sizeof(name));
    unlink(name);
}

bool capture_files_is_full(const struct capture_files *files)
{
    return files->size && (uint64_t)ftello(files->file) >= files->size;
}

int capture_files_turn(struct capture_files *files)
{
    int error = capture_files_close(files);

    files->number++;
    if (!error)
        error = open_present(files);
    if (!error)
        remove_oldest(files);
    return error;
}
