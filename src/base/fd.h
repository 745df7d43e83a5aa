/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_FD_H
#define BASE_FD_H

/* For each new descriptor of ours. A program that was started with stdin, stdout or stderr closed prints all
 * the same, and what it prints must not end up in a file of ours. Passes on fd, also a negative one; one of
 * 0 to 2 becomes another one. -1 with errno where there is no other; then fd is closed. */
int fd_lift(int fd);

#endif
