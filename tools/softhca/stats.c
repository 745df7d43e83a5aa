/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca stats: counters of all processes, for exporters and scripts. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters.h"
#include "commands.h"
#include "counters.h"
#include "explain/out.h"
#include "place.h"
#include "top.h"
#include "tree.h"

struct options {
    bool json, prometheus;
    const char *sysfs, *output;
};

enum { OPTION_JSON = 256, OPTION_PROMETHEUS, OPTION_SYSFS };

static const struct argp_option option_table[] = {
    {"json", OPTION_JSON, NULL, 0, "One JSON object, as softhca top --once --json (the default)", 0},
    {"prometheus", OPTION_PROMETHEUS, NULL, 0, "The text format of Prometheus", 0},
    {"output", 'o', "FILE", 0,
     "Replace FILE atomically, instead of writing to stdout: for the directory of node_exporter's "
     "textfile collector",
     0},
    {"sysfs", OPTION_SYSFS, "DIR", 0,
     "Write the tree class/infiniband with counters and hw_counters into DIR, for node_exporter's "
     "--path.sysfs. DIR also "
     "stores the totals of exited processes, so that counters never decrease",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPTION_JSON:
        options->json = true;
        return 0;
    case OPTION_PROMETHEUS:
        options->prometheus = true;
        return 0;
    case OPTION_SYSFS:
        options->sysfs = argument;
        return 0;
    case 'o':
        options->output = argument;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        if (options->json + options->prometheus + (options->sysfs != NULL) > 1)
            argp_error(state, "--json, --prometheus and --sysfs exclude each other");
        if (options->sysfs && options->output)
            argp_error(state, "--sysfs writes into its DIR, and takes no --output");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- one file -------------------------------------------------------------------------------------------- */

/* Whoever reads FILE sees the old or the new text, never a part. */
static int replace(const char *path, const char *text, size_t length)
{
    size_t size = strlen(path) + 32;
    char *temporary = malloc(size);
    mode_t mask = umask(022);
    int fd, error = 0;

    if (!temporary)
        return -ENOMEM;
    /* Not *.prom: node_exporter reads every such file. */
    snprintf(temporary, size, "%s.%d.new", path, (int)getpid());
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    umask(mask);
    if (fd < 0) {
        error = -errno;
        free(temporary);
        return error;
    }
    while (length && !error) {
        ssize_t written = write(fd, text, length);

        if (written < 0 && errno != EINTR)
            error = -errno;
        if (written > 0) {
            text += written;
            length -= (size_t)written;
        }
    }
    if (close(fd) && !error)
        error = -errno;
    if (!error && rename(temporary, path))
        error = -errno;
    if (error)
        unlink(temporary);
    free(temporary);
    return error;
}

static int write_out(const struct options *options, const char *text, size_t length)
{
    int error;

    if (!options->output) {
        if (fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0)
            return 0;
        fprintf(stderr, "softhca: cannot write: %s\n", strerror(errno));
        return 1;
    }
    error = replace(options->output, text, length);
    if (error)
        fprintf(stderr, "softhca: cannot write %s: %s\n", options->output, strerror(-error));
    return error ? 1 : 0;
}

static int tell(const struct options *options)
{
    struct stats_text text = {0};
    struct counted counted;
    struct out out;
    int status;

    if (counted_read(true, false, !options->prometheus, &counted)) {
        fprintf(stderr, "softhca: out of memory\n");
        return 1;
    }
    if (options->prometheus) {
        stats_prometheus(&text, counted.list, counted.count, counted.hidden);
        if (text.failed) {
            fprintf(stderr, "softhca: out of memory\n");
            status = 1;
        } else {
            status = write_out(options, text.text, text.length);
        }
        free(text.text);
    } else {
        out_init(&out, true, SIZE_MAX);
        top_json(&out, &counted);
        status = write_out(options, out.text ? out.text : "", out.length);
        out_fini(&out);
    }
    counted_free(&counted);
    return status;
}

/* --- a tree ---------------------------------------------------------------------------------------------- */

#define DEVICES_ROOM 64

/* The directories above `path`, of which each entry of a manifest has those before it. */
static int write_entry(int root, const struct manifest_entry *entry)
{
    const char *path = entry->path + strlen("sys/");
    char temporary[PATH_MAX];
    int fd, error = 0;
    size_t length;

    switch (entry->kind) {
    case MANIFEST_DIRECTORY:
        return mkdirat(root, path, 0755) && errno != EEXIST ? -errno : 0;
    case MANIFEST_LINK:
        return symlinkat(entry->content, root, path) && errno != EEXIST ? -errno : 0;
    case MANIFEST_FILE:
        break;
    }
    if (snprintf(temporary, sizeof(temporary), "%s.%d.new", path, (int)getpid()) >= (int)sizeof(temporary))
        return -ENAMETOOLONG;
    fd = openat(root, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return -errno;
    length = strlen(entry->content);
    if (write(fd, entry->content, length) != (ssize_t)length || write(fd, "\n", 1) != 1)
        error = -EIO;
    if (close(fd) && !error)
        error = -errno;
    if (!error && renameat(root, temporary, root, path))
        error = -errno;
    if (error)
        unlinkat(root, temporary, 0);
    return error;
}

static int write_tree(int root, const struct adapters *adapters, const struct ledger_port *ports,
                      unsigned count)
{
    struct manifest manifest = {0};
    int error = 0;

    tree_describe(&manifest, adapters, ports, count);
    if (manifest.failed)
        error = -ENOMEM;
    for (size_t i = 0; i < manifest.count && !error; i++) {
        if (strncmp(manifest.entries[i].path, "sys/", strlen("sys/")) == 0)
            error = write_entry(root, &manifest.entries[i]);
    }
    manifest_free(&manifest);
    return error;
}

static int write_sysfs(const char *path)
{
    static struct ledger_port ports[DEVICES_ROOM];
    struct adapters adapters = {0};
    struct place place;
    char why[256] = "";
    int root, error, ledger_error = 0, count;
    mode_t mask = umask(022);

    if (place_find(&place))
        return 1;
    if (mkdir(path, 0755) && errno != EEXIST) {
        fprintf(stderr, "softhca: cannot make %s: %s\n", path, strerror(errno));
        return 1;
    }
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        fprintf(stderr, "softhca: cannot open %s: %s\n", path, strerror(errno));
        return 1;
    }
    error = adapters_read(place.verbs, &adapters, why, sizeof(why));
    count = error ? error : counters_ports(root, true, ports, DEVICES_ROOM, &ledger_error);
    if (count < 0)
        error = count;
    if (!error)
        error = write_tree(root, &adapters, ports, (unsigned)count);
    umask(mask);
    adapters_free(&adapters);
    close(root);
    if (error)
        fprintf(stderr, "softhca: cannot write the tree %s: %s\n", path, why[0] ? why : strerror(-error));
    else if (ledger_error)
        fprintf(stderr,
                "softhca: warning: cannot store the totals of exited processes in %s (%s): counters decrease "
                "when "
                "a process exits\n",
                path, strerror(-ledger_error));
    return error ? 1 : 0;
}

int command_stats(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Prints the counters of all processes of this host that use SoftHCA and that you may read: "
               "requests, bytes, "
               "latencies, retries, queues, events, memory. The processes are not stopped or disturbed.",
    };
    struct options options = {0};

    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    return options.sysfs ? write_sysfs(options.sysfs) : tell(&options);
}
