/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Control requests (published/control_request.h): tools that ask this process for something, and stay connected while
 * what they have asked for lasts. All of it belongs to the helper thread, and before there is one to whoever starts the
 * engine. */
#ifndef LOCAL_CONTROL_H
#define LOCAL_CONTROL_H

#include "local/handshake_internal.h"
#include "published/control_request.h"

/* Ends the handshake: its socket becomes that of a request, which control_run() decides. Takes over file, -1: none. A
 * lock of the listener may be held. */
void control_receive(struct handshake *handshake, const struct control_request *request, int file);
/* Decides what was asked, and ends what lasted for tools that are gone. In local_dispatch(), without locks, because the
 * callbacks lock QPs. */
void control_run(void);
void control_after_fork_in_child(void);

#endif
