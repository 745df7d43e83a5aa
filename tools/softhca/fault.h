/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Specifications of faults, from the command line or a file. */
#ifndef SOFTHCA_FAULT_H
#define SOFTHCA_FAULT_H

/* Adds what the argument names, a specification or @FILE, to the list, after it was read as the adapter reads it. 0, or
 * -errno after a message. option: what stands before the specification in a message, "--fault: " or "". */
int fault_add(const char *option, const char *argument, char **list);

#endif
