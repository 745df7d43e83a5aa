/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Reading the memory of another process of the same user (process_vm_readv(2)): probe in the handshake, lane_pull(). */
#ifndef LOCAL_REFERENCE_H
#define LOCAL_REFERENCE_H

#include <stdbool.h>
#include <sys/types.h>

#include "local/handshake_message.h"

/* True if that is the user of this process. False for the overflow uid, which stands for all users without a number
 * in our user namespace. */
bool reference_same_user(uid_t uid);
/* Lets processes of the same user read and write our memory where Yama restricts that to our ancestors. */
void reference_permit(void);
/* True if process_vm_readv(2) finds the nonce of the message at nonce_address. */
bool reference_probe(pid_t pid, const struct handshake_message *message);

/* Copies from the peer's memory to ours; by memmove on the link to ourselves. 0, -EFAULT, -EPERM; -EINVAL: the
 * lengths differ; -ESRCH: the peer died, the copied bytes are void. */
int link_pull(struct link *link, const struct packet_reference *from, unsigned from_count,
              const struct iovec *to, unsigned to_count);

#endif
