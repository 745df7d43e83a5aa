/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_GID_TEXT_H
#define BASE_GID_TEXT_H

#include <stdint.h>

#define GID_TEXT 46 /* INET6_ADDRSTRLEN */

/* A GID for people: an IPv4 address where it is one. Returns `text`. */
const char *gid_text(const uint8_t gid[16], char text[GID_TEXT]);

#endif
