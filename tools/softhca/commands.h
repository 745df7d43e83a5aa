/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The commands; each parses its own arguments (argv[0] is "softhca COMMAND") and returns the exit status. */
#ifndef SOFTHCA_COMMANDS_H
#define SOFTHCA_COMMANDS_H

int command_capture(int argc, char **argv);
int command_check(int argc, char **argv);
int command_run(int argc, char **argv);
int command_devices(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_fault(int argc, char **argv);
int command_ps(int argc, char **argv);
int command_stats(int argc, char **argv);
int command_top(int argc, char **argv);
int command_watch(int argc, char **argv);
int command_why(int argc, char **argv);

/* Names below /sys/class/infiniband that are the machine's own, separated by blanks; "" if there are none. */
#include <stddef.h>
void real_devices(char *ret_names, size_t size);

#endif
