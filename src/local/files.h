/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Files of memory that go over a link (SCM_RIGHTS), for peers that cannot open them through /proc: of another pid
 * namespace. A peer gets them if the kernel would let it trace this process, which is known in one of two ways:
 *
 *   it quotes the secret of our published segment   It has read the segment, so the kernel has let it.
 *   ptrace_access_of_peer()                         This process decides by what the kernel says about the peer.
 *
 * Each file is given once per link, so a peer gets LINK_FILES descriptors at most. An answer is accepted if it was asked
 * for, and the engine asks once for each file. */
#ifndef LOCAL_FILES_H
#define LOCAL_FILES_H

#include "local/link.h"
#include "local/notify.h"

/* May the peer have to do with memory of this process at all? It is of the same user, and the settings allow it. */
bool files_wants_direct(const struct link *link);
/* Can the peer open files of this process without asking? It is of the same user, and has a number here. */
bool files_may_be_opened(const struct link *link);
/* Would the kernel let the process at the other end trace this one? It quotes the secret, or ptrace_access_of_peer(). */
bool ptrace_access_or_secret(int socket, const uint8_t secret[LINK_SECRET_BYTES]);
/* Answers LINK_WANTS_FILE. Helper thread. */
void files_answer(struct link *link, const struct link_question *question);
/* Handles LINK_ANSWERS_FILE; takes over fd, -1 if none. Helper thread. */
void files_accept(struct link *link, const struct link_offer *offer, int fd);

#endif
