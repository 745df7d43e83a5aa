/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Writes files in the pcapng format (draft-ietf-opsawg-pcapng): section, interfaces, packets, statistics. Errors of the
 * stream are found by ferror(). */
#ifndef CAPTURE_PCAPNG_H
#define CAPTURE_PCAPNG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

void pcapng_section(FILE *file, const char *application);
/* Ethernet, with times in nanoseconds. Interfaces are numbered from 0 in the order of their description. */
void pcapng_interface(FILE *file, const char *name, uint32_t snap);
/* time: ns since 1970. captured of the frame's `length` bytes are there. comment: "" for none. */
void pcapng_packet(FILE *file, uint32_t interface, uint64_t time, const uint8_t *frame, size_t captured,
                   size_t length, const char *comment);
void pcapng_statistics(FILE *file, uint32_t interface, uint64_t time, uint64_t received, uint64_t dropped);

#endif
