/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca run: sets the environment and becomes the program. */
#include <argp.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters.h"
#include "commands.h"
#include "fault.h"
#include "launch.h"
#include "place.h"
#include "tree.h"

struct options {
    struct launch_options launch;
    char *faults; /* specifications, a line each */
    const char *devices;
    const char *log;
    bool no_shim;
};

enum { OPTION_DEVICES = LAUNCH_KEYS, OPTION_FAULT, OPTION_LOG, OPTION_NO_SHIM };

static const struct argp_option option_table[] = {
    {"devices", OPTION_DEVICES, "NAMES", 0,
     "Names of the devices instead of softhca0,softhca1,... (SOFTHCA_DEVICE_NAMES)", 0},
    {"all", LAUNCH_ALL, NULL, 0,
     "Also explain what is usually harmless: destroys that fail with EBUSY, what a destroy discards, objects "
     "not destroyed at exit (SOFTHCA_EXPLAIN_WHAT=all). By default (SOFTHCA_EXPLAIN_WHAT=wrong) only what "
     "fails or hangs is explained",
     0},
    {"explain", LAUNCH_EXPLAIN, "FORM", 0,
     "text, json or off: explanations of what fails or hangs (SOFTHCA_EXPLAIN; default text; json always "
     "includes what --all adds)",
     0},
    {"fault", OPTION_FAULT, "SPEC", 0,
     "A fault to inject (softhca-fault(7) has the syntax), or @FILE with one fault on each line; may be "
     "repeated (SOFTHCA_FAULT)",
     0},
    {"log", OPTION_LOG, "LEVEL", 0, "none, error, warn, info or debug (SOFTHCA_LOG; default warn)", 0},
    {"no-shim", OPTION_NO_SHIM, NULL, 0,
     "Do not preload libsofthca-shim.so: programs that look into /sys/class/infiniband or /dev/infiniband do "
     "not find the devices",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPTION_DEVICES:
        options->devices = argument;
        return 0;
    case OPTION_FAULT:
        if (fault_add("--fault: ", argument, &options->faults))
            exit(EXIT_OURS);
        return 0;
    case OPTION_LOG:
        options->log = argument;
        return 0;
    case OPTION_NO_SHIM:
        options->no_shim = true;
        return 0;
    default:
        return launch_parse(key, argument, state, &options->launch);
    }
}

/* The shim helps programs that read these files; most others run without it, so a failure is only reported.
 * */
static int set_shim(const struct place *place)
{
    struct adapters adapters = {0};
    char root[PATH_MAX], why[256];
    int error;

    /* ld.so separates the names in LD_PRELOAD by blanks and colons, and knows no way to quote them. */
    if (strpbrk(place->shim, " :\t\n")) {
        fprintf(stderr,
                "softhca: warning: the path %s contains a blank or colon, which LD_PRELOAD cannot hold: "
                "running without libsofthca-shim.so (SoftHCA's devices are not shown in "
                "/sys/class/infiniband and /dev/infiniband)\n",
                place->shim);
        return 0;
    }
    error = adapters_read(place->verbs, &adapters, why, sizeof(why));
    if (!error && adapters.count == 0)
        fprintf(stderr, "softhca: warning: no network interface has an address: there will be no device\n");
    if (!error)
        error = tree_publish(&adapters, root, why, sizeof(why));
    adapters_free(&adapters);
    if (error) {
        fprintf(stderr,
                "softhca: warning: running without libsofthca-shim.so (SoftHCA's devices are not shown in "
                "/sys/class/infiniband and /dev/infiniband): %s\n",
                why);
        return 0;
    }
    error = launch_set("SOFTHCA_SYSFS_ROOT", root);
    if (!error)
        error = launch_set_in_front("LD_PRELOAD", place->shim);
    /* A program that gcc built with AddressSanitizer refuses to start behind any preloaded library. */
    return error ? error : launch_set_in_front("ASAN_OPTIONS", "verify_asan_link_order=0");
}

static int find_program(const char *name, char *ret_path)
{
    const char *directories = getenv("PATH");
    struct stat status;

    if (strchr(name, '/'))
        return snprintf(ret_path, PATH_MAX, "%s", name) < PATH_MAX ? 0 : -ENAMETOOLONG;
    while (directories && *directories) {
        size_t length = strcspn(directories, ":");

        if (snprintf(ret_path, PATH_MAX, "%.*s/%s", (int)length, length ? directories : ".", name) <
                PATH_MAX &&
            stat(ret_path, &status) == 0 && S_ISREG(status.st_mode) && access(ret_path, X_OK) == 0)
            return 0;
        directories += length;
        directories += *directories == ':';
    }
    return -ENOENT;
}

/* Programs that do not load our libraries (statically linked; setuid: the dynamic loader ignores
 * LD_LIBRARY_PATH) run without SoftHCA: reports that. */
static void warn_if_out_of_reach(const char *name)
{
    char path[PATH_MAX];
    struct stat status;
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    bool interpreter = false;
    int fd;

    if (find_program(name, path) || stat(path, &status))
        return;
    if ((status.st_mode & S_ISUID && status.st_uid != geteuid()) ||
        (status.st_mode & S_ISGID && status.st_gid != getegid())) {
        fprintf(stderr,
                "softhca: warning: %s is setuid, so LD_LIBRARY_PATH is ignored (run softhca as the owner of "
                "that file)\n",
                path);
        return;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (pread(fd, &header, sizeof(header), 0) == sizeof(header) &&
        memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64 &&
        header.e_phentsize == sizeof(segment)) {
        for (int i = 0; i < header.e_phnum; i++) {
            off_t at = (off_t)(header.e_phoff + (Elf64_Off)i * sizeof(segment));

            if (pread(fd, &segment, sizeof(segment), at) == sizeof(segment) && segment.p_type == PT_INTERP)
                interpreter = true;
        }
        if (!interpreter)
            fprintf(stderr, "softhca: warning: %s is statically linked and cannot use SoftHCA\n", path);
    }
    close(fd);
}

int command_run(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "[--] PROGRAM [ARG...]",
        .doc = "Runs PROGRAM, unmodified, with SoftHCA's libibverbs and RDMA devices (by exec).",
    };
    struct options options = {0};
    struct place place;

    argp_err_exit_status = EXIT_OURS;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
    if (place_find(&place))
        return EXIT_OURS;
    /* LD_LIBRARY_PATH knows no quoting either. */
    if (strpbrk(place.directory, ":;")) {
        fprintf(stderr,
                "softhca: the path %s contains a colon or semicolon, which LD_LIBRARY_PATH cannot "
                "hold\n",
                place.directory);
        return EXIT_OURS;
    }
    /* First, because the devices are then read with these names. */
    if ((options.devices && launch_set("SOFTHCA_DEVICE_NAMES", options.devices)) ||
        launch_set_or_keep("SOFTHCA_EXPLAIN", options.launch.explain, "text") ||
        (options.launch.all && launch_set("SOFTHCA_EXPLAIN_WHAT", "all")) ||
        (options.faults && launch_set("SOFTHCA_FAULT", options.faults)) ||
        launch_set_or_keep("SOFTHCA_LOG", options.log, "warn") ||
        launch_set_in_front("LD_LIBRARY_PATH", place.directory))
        return EXIT_OURS;
    if (!options.no_shim && set_shim(&place))
        return EXIT_OURS;
    warn_if_out_of_reach(options.launch.program[0]);
    return launch(options.launch.program);
}
