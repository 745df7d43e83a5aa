/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/told_once.h"

bool told_once_topic(struct told_once *told, uint64_t topic)
{
    for (unsigned i = 0; i < TOLD_TOPICS; i++) {
        if (told->topics[i] == topic)
            return false;
    }
    told->topics[told->next++ % TOLD_TOPICS] = topic;
    return true;
}

bool told_once_kind(struct told_once *told, unsigned kind, bool *ret_last)
{
    told->of_kind[kind]++;
    *ret_last = told->of_kind[kind] == TOLD_OF_A_KIND;
    return told->of_kind[kind] <= TOLD_OF_A_KIND;
}
