/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/remarks.h"

#include "base/types.h"
#include "explain/out.h"

static const struct {
    const char *one, *many;
} nouns[] = {
    [REMARK_BUSY] = {"refused destroy (EBUSY)", "refused destroys (EBUSY)"},
    [REMARK_IN_USE] = {"MR deregistered while work requests used its lkey",
                       "MRs deregistered while work requests used their lkeys"},
    [REMARK_SENDS] = {"outstanding send of a destroyed QP", "outstanding sends of destroyed QPs"},
    [REMARK_RECEIVES] = {"unused receive", "unused receives"},
    [REMARK_COMPLETIONS] = {"unpolled completion", "unpolled completions"},
    [REMARK_EVENTS] = {"unread event", "unread events"},
    [REMARK_ARMED] = {"armed notification", "armed notifications"},
    [REMARK_DROPPED] = {"QP that dropped datagrams", "QPs that dropped datagrams"},
    [REMARK_REFUSED] =
        {"failed call of a kind that programs often expect to fail (EOPNOTSUPP, a full queue ...)",
         "failed calls of a kind that programs often expect to fail (EOPNOTSUPP, a full queue "
         "...)"},
};
_Static_assert(array_size(nouns) == REMARKS, "a noun for each");

bool words_add_remarks(struct words *words, const uint64_t counts[REMARKS])
{
    bool any = false;

    for (unsigned i = 0; i < REMARKS; i++) {
        if (!counts[i])
            continue;
        words_add(words, "%s%llu %s", any ? ", " : "", (unsigned long long)counts[i],
                  counts[i] == 1 ? nouns[i].one : nouns[i].many);
        any = true;
    }
    return any;
}
