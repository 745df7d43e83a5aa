/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sends memfds of this process over a link (SCM_RIGHTS), to peers of another pid namespace, which cannot open them
 * through /proc. A peer gets them if the kernel would let it trace this process, which is known in one of two ways:
 *
 *   it quotes the secret of our published segment   It has read the segment, so the kernel has let it.
 *   ptrace_access_of_peer()                         This process decides by what the kernel says about the peer.
 *
 * Each file is given once per link, so a peer gets LINK_FILES descriptors at most. An answer is accepted if it was
 * asked for, and the engine asks once for each file. */
#ifndef LOCAL_FILES_H
#define LOCAL_FILES_H

#include "local/link.h"
#include "local/notify.h"

/* May the peer access memory of this process at all? True if it is of the same user and SOFTHCA_LOCAL allows it. */
bool files_wants_direct(const struct link *link);
/* Can the peer open files of this process without asking? True if it is of the same user and its pid is visible in our
 * pid namespace. */
bool files_may_be_opened(const struct link *link);
/* Would the kernel let the process at the other end trace this one? True if it quotes our segment's secret, or
 * ptrace_access_of_peer() says so. */
bool ptrace_access_or_secret(int socket, const uint8_t secret[LINK_SECRET_BYTES]);
/* Answers LINK_WANTS_FILE. Helper thread. */
void files_answer(struct link *link, const struct link_question *question);
/* Gives what the kernel did not take then (ETOOMANYREFS, EAGAIN). False: it does not take it now either. Helper
 * thread. */
bool files_give_owed(struct link *link);
/* Handles LINK_ANSWERS_FILE; takes over fd, -1 if none. Helper thread. */
void files_accept(struct link *link, const struct link_offer *offer, int fd);

#endif
