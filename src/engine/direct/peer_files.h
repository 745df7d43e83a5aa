/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A peer's files, for peer.c, which decides when one is needed and what of it is mapped. Helper thread. */
#ifndef ENGINE_DIRECT_PEER_FILES_H
#define ENGINE_DIRECT_PEER_FILES_H

#include "engine/direct/direct.h"

/* The file of the segment's tables. NULL: the kernel does not permit it. If the call has set direct_peer.by_link, the
 * peer may be asked for the file. */
struct mapped_file *peer_files_open_tables(struct direct_peer *peer);
/* The same file, by a descriptor, which stays the caller's. NULL: it is no such file. */
struct mapped_file *peer_files_accept_tables(int fd);
/* The file of the segment's queues. NULL: it cannot be opened, or its owner has closed it. */
struct mapped_file *peer_files_open_queues(const struct direct_peer *peer,
                                           const struct segment_header *header);
/* Gives a thread that has to share its processor with this one, pinned by the program, as long as one of its requests
 * takes: between two steps that nothing waits for. To yield is not enough: who has slept is mostly chosen again. */
void peer_files_give_way(bool is_awaited);
/* The peer's arena with that number, opened at its first use; is_awaited: as above. NULL: not published, cannot be
 * opened, or asked for (direct_peer.file_asked). */
struct mapped_file *peer_files_arena(struct direct_peer *peer, uint32_t number, bool is_awaited);
/* The answer for an arena that was asked for. fd: negative if the peer sends none; stays the caller's. */
void peer_files_arena_came(struct direct_peer *peer, enum link_file which, int fd);

#endif
