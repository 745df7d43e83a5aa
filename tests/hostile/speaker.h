/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A link to a process, made without the library: an attacker writes into its rings what he likes. */
#ifndef TESTS_HOSTILE_SPEAKER_H
#define TESTS_HOSTILE_SPEAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/packet.h"

enum { SPEAKER_PAYLOAD = 512 };

struct speaker;
/* Takes the name of a block of QP numbers and listens. -1: somebody has it. */
int speaker_listen(uint32_t block);
/* Greets the owner of the QP number; NULL: there is none, or he refused. */
struct speaker *speaker_connect(uint32_t qpn);
/* Is greeted; NULL: by nobody within that time, or not to the end. */
struct speaker *speaker_accept(int listener, int timeout_ms);
/* Connects so often to the owner of the QP number, and says nothing. Returns how many connections there are. */
unsigned int speaker_crowd(uint32_t qpn, unsigned int count);
/* Ends the link. The process that accepts one next says that it is another one. */
void speaker_hang_up(struct speaker *speaker);
/* Writes a packet into the ring of that QP number, and rings. Where the ring is full it waits, but not for ever. */
void speaker_say(struct speaker *speaker, uint32_t lane_qpn, const struct packet *packet,
                 const void *payload);
/* Says on behalf of which QP requests for SRQs of the peer follow, whose XRC domain is that file. */
void speaker_say_terms(struct speaker *speaker, uint32_t src_qpn, uint64_t device, uint64_t inode);
/* Asks so often for the state of a QP of the peer that nobody has opened (ibv_query_qp() of a handle). */
void speaker_query(struct speaker *speaker, uint32_t qpn, unsigned int count);
/* The next packet from the peer, in whatever ring; false: none within that time. *ret_payload has room for
 * SPEAKER_PAYLOAD bytes. */
bool speaker_hear(struct speaker *speaker, struct packet *ret_packet, void *ret_payload, int timeout_ms);

/* Sends a datagram to UDP port 4791 of the IPv4 address in its GRH, from the address there. */
bool speaker_send_by_network(const struct packet *packet, const void *payload);

#endif
