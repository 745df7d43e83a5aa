/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the library takes from libdeflate, which is there for this machine's processor only. */
#include <libdeflate.h>

#include "wire/crc_methods.h"

uint32_t libdeflate_crc32(uint32_t crc, const void *bytes, size_t length)
{
    static bool filled; /* the program has one thread that computes it */

    if (!filled)
        crc_fill_table();
    filled = true;
    return ~crc_by_table(~crc, bytes, length);
}
