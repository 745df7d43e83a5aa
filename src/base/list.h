/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Doubly linked circular list. The head is a node without an element. A node outside of a list points at itself, so a
 * second removal is harmless, and list_linked() is false. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>

#include "base/types.h"

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *node)
{
    node->next = node->prev = node;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline bool list_linked(const struct list *node)
{
    return node->next != node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

static inline struct list *list_pop_front(struct list *head)
{
    struct list *node = head->next;

    if (node == head)
        return NULL;
    list_remove(node);
    return node;
}

#define list_entry(node, type, member) container_of(node, type, member)

#define list_for_each(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
#define list_for_each_safe(pos, following, head)                                                             \
    for (struct list *pos = (head)->next, *following = pos->next; pos != (head);                             \
         pos = following, following = pos->next)

#endif
