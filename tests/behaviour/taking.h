/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How the program at an end takes memory back from peers that may be at work in it. */
#ifndef TESTS_BEHAVIOUR_TAKING_H
#define TESTS_BEHAVIOUR_TAKING_H

#include "end.h"

enum taking { DEREGISTERS, REREGISTERS, ENTERS_ERR, ENTERS_RESET, DESTROYS_QP, TAKINGS };

/* When it returns, the memory is the program's, whatever the peer does. */
void take_back(struct end *end, enum taking how);

/* Skips the test where the kernel does not let processes copy from each other. The other side was forked from this
 * one, so that an address of this process is one of its own. */
void need_copies(void);

#endif
