/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The file with the code at an address of another process. What the process says of its files is not believed: only
 * what the kernel shows as mapped there is opened, never what a name leads to (/proc/kmsg, a FIFO). */
#ifndef EXPLAIN_CODE_FILE_H
#define EXPLAIN_CODE_FILE_H

#include <stdint.h>
#include <sys/types.h>

/* A descriptor for reading a regular file; -1: there is none, or it is not to be opened. Of another user's process
 * only a file on a disk or in memory (tmpfs) is opened, by /proc/PID/map_files, which takes root; a file of FUSE or
 * of a network may block its reader for as long as its server likes. path: the name of the file as the process knows
 * it, for processes of the own user where map_files is not allowed; it is opened only if it is the file that is
 * mapped. */
int code_file_open(pid_t pid, uint64_t address, const char *path);

#endif
