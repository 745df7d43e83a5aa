/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who owns a block of QP numbers: see local_is_owner(). */
#ifndef LOCAL_OWNERS_H
#define LOCAL_OWNERS_H

#include <stdint.h>

#include "local/link.h"

/* A lookup has led to the peer of the link. In a rundown section, or the helper thread. */
void owners_note(struct link *link, uint32_t block);
void owners_after_fork_in_child(void);

#endif
