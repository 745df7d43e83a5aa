/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Pairing heap of deadlines, which needs no memory except the links in each id. `previous` of a node is its previous
 * sibling, or the parent of a first child, or NULL for the root. */
#include "cm/machine.h"

/* Melds two heaps. */
static struct cm_id *meld(struct cm_id *a, struct cm_id *b)
{
    if (!a)
        return b;
    if (!b)
        return a;
    if (b->deadline.at < a->deadline.at) {
        struct cm_id *earlier = b;

        b = a;
        a = earlier;
    }
    b->deadline.next = a->deadline.child;
    if (b->deadline.next)
        b->deadline.next->deadline.previous = b;
    b->deadline.previous = a;
    a->deadline.child = b;
    return a;
}

/* Two-pass melding: pairs of siblings from the first to the last, then the pairs from the last to the first. */
static struct cm_id *meld_siblings(struct cm_id *first)
{
    struct cm_id *pairs = NULL, *root = NULL;

    while (first) {
        struct cm_id *second = first->deadline.next, *following = NULL, *pair;

        if (second) {
            following = second->deadline.next;
            second->deadline.next = second->deadline.previous = NULL;
        }
        first->deadline.next = first->deadline.previous = NULL;
        pair = meld(first, second);
        pair->deadline.next = pairs;
        pairs = pair;
        first = following;
    }
    while (pairs) {
        struct cm_id *following = pairs->deadline.next;

        pairs->deadline.next = NULL;
        root = meld(root, pairs);
        pairs = following;
    }
    return root;
}

void deadline_cancel(struct cm *cm, struct cm_id *id)
{
    struct cm_id *children;

    if (id->deadline.at == NS_NEVER)
        return;
    children = meld_siblings(id->deadline.child);
    if (cm->earliest == id) {
        cm->earliest = children;
    } else {
        struct cm_id *previous = id->deadline.previous;

        if (previous->deadline.child == id)
            previous->deadline.child = id->deadline.next;
        else
            previous->deadline.next = id->deadline.next;
        if (id->deadline.next)
            id->deadline.next->deadline.previous = previous;
        cm->earliest = meld(cm->earliest, children);
    }
    id->deadline.child = id->deadline.next = id->deadline.previous = NULL;
    id->deadline.at = NS_NEVER;
}

void deadline_set(struct cm *cm, struct cm_id *id, ns_t at)
{
    deadline_cancel(cm, id);
    id->deadline.at = at;
    cm->earliest = meld(cm->earliest, id);
}
