/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/gid_text.h"

#include <arpa/inet.h>
#include <string.h>

_Static_assert(GID_TEXT == INET6_ADDRSTRLEN, "the longest");

const char *gid_text(const uint8_t gid[16], char text[GID_TEXT])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    text[0] = '\0';
    if (memcmp(gid, mapped, sizeof(mapped)) == 0)
        inet_ntop(AF_INET, gid + 12, text, GID_TEXT);
    else
        inet_ntop(AF_INET6, gid, text, GID_TEXT);
    return text;
}
