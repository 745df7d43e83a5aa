/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The QPN blocks of this process: local_qpn_allocate(), local_qpn_release(). */
#ifndef LOCAL_BLOCKS_H
#define LOCAL_BLOCKS_H

#include <stdbool.h>

void blocks_after_fork_in_child(void);
/* Stops (out of descriptors, accept4 failed) or resumes watching the listeners. Helper thread. */
void blocks_watch(bool watch);

#endif
