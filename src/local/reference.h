/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Reading the memory of another process of the same user: probing at the handshake, lane_pull(). */
#ifndef LOCAL_REFERENCE_H
#define LOCAL_REFERENCE_H

#include <stdbool.h>
#include <sys/types.h>

#include "local/handshake_message.h"

/* Is that user us? A user that has no number in our user namespace is nobody's equal. */
bool reference_same_user(uid_t uid);
/* Lets processes of our user read and write our memory where Yama would only let our ancestors. */
void reference_permit(void);
/* Reads the nonce that the handshake promises. */
bool reference_probe(pid_t pid, const struct handshake_message *message);

/* Copies from a peer's memory to ours (self: memcpy). 0, -EFAULT, -EPERM, -EINVAL (lengths differ), -ESRCH
 * (the peer died; what was copied is void). */
int link_pull(struct link *link, const struct packet_reference *from, unsigned from_count,
              const struct iovec *to, unsigned to_count);

#endif
