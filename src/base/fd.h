/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_FD_H
#define BASE_FD_H

/* Applied to each new descriptor of SoftHCA: moves 0 to 2 to a higher number. A program that was started with stdin,
 * stdout or stderr closed would otherwise print into our descriptor. Returns fd, also a negative one; -1 with errno:
 * no other number is free, and fd is closed. */
int fd_lift(int fd);

#endif
