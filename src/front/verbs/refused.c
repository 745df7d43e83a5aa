/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls that fail: the reason that the rule has noted (base/refusal.h) is recorded, and told. */
#include <errno.h>
#include <string.h>

#include "engine/core/explainer.h"
#include "front/verbs/front.h"

/* "front_post_send" is ibv_post_send(), "wr_complete" ibv_wr_complete(). */
cold_path void front_refused(const char *call, int error)
{
    struct refusal reason;
    char name[40] = "ibv_";

    if (strncmp(call, "front_", 6) == 0)
        call += 6;
    if (strncmp(call, "ibv_", 4) == 0)
        call += 4;
    strncat(name, call, sizeof(name) - strlen(name) - 1);
    refusal_take(error, &reason);
    explainer_refused(name, &reason);
}
