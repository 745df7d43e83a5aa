/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef LOCAL_DOORBELL_H
#define LOCAL_DOORBELL_H

#include "local/link.h"

/* The kernel did not take an answer to the peer (link.files_owed). Helper thread. */
void doorbell_owe(struct link *link);
/* Rings, and answers, once more where the kernel did not take it, when the time has come. Helper thread. */
void doorbell_ring_owed(void);
/* When doorbell_ring_owed() is to be called; NS_NEVER: nothing is owed. */
ns_t doorbell_deadline(void);
void doorbell_after_fork_in_child(void);

#endif
