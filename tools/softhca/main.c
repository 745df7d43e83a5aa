/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

__attribute__((visibility("default"))) const char *argp_program_version = "softhca " SOFTHCA_VERSION;

static const struct {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"run", command_run, "run a program with SoftHCA's RDMA devices"},
    {"watch", command_watch, "run a program on its RDMA NIC, and explain what goes wrong"},
    {"devices", command_devices, "list the devices that programs under softhca run see"},
    {"ps", command_ps, "list the processes that use SoftHCA, and their objects"},
    {"top", command_top, "show processes, QPs, rates and latencies, live"},
    {"stats", command_stats, "counters for Prometheus, node_exporter and scripts"},
    {"fault", command_fault, "inject faults into a running process, list or remove them"},
    {"why", command_why, "explain what a process waits for"},
    {"check", command_check, "compare both ends of a process's connections"},
    {"capture", command_capture, "write the packets of a process into a pcapng file"},
    {"doctor", command_doctor, "check what this machine supports, and what to change"},
};

struct choice {
    int argc;
    char **argv;
    char *name; /* NULL: no command */
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct choice *choice = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        /* The rest is the command's own. */
        choice->name = argument;
        choice->argv = state->argv + state->next - 1;
        choice->argc = state->argc - state->next + 1;
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static char *list_commands(int key, const char *text, void *input)
{
    char *list = NULL;
    size_t size = 0;
    FILE *out;

    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)text;
    out = open_memstream(&list, &size);
    if (!out)
        return (char *)text;
    fputs("Commands:\n", out);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`softhca COMMAND --help` shows the options of a command.", out);
    fclose(out);
    return list;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "COMMAND [ARG...]",
        .doc = "An RDMA adapter in software, inside the process that uses it.\v",
        .help_filter = list_commands,
    };
    struct choice choice = {0};

    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &choice);
    for (size_t i = 0; choice.name && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, choice.name) == 0) {
            char title[64];

            snprintf(title, sizeof(title), "softhca %s", commands[i].name);
            choice.argv[0] = title;
            return commands[i].function(choice.argc, choice.argv);
        }
    }
    if (choice.name)
        fprintf(stderr, "softhca: no command '%s'\n", choice.name);
    argp_help(&argp, stderr, ARGP_HELP_USAGE | ARGP_HELP_POST_DOC, (char *)"softhca");
    return 2;
}
