/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The objects of a segment: what each is, who made it, and who holds it. */
#ifndef EXPLAIN_OBJECTS_H
#define EXPLAIN_OBJECTS_H

#include "explain/out.h"
#include "explain/view.h"

/* A copy of one object's record. */
struct object {
    enum object_kind kind;
    uint32_t number;
    bool destroying;      /* its destroy waits */
    uint32_t context, pd; /* NO_OBJECT: none */
    struct provenance_record provenance;
    union {
        struct {
            struct qp_record qp;
            struct qp_rare rare; /* zero, if it has none */
        };
        struct cq_record cq;
        struct srq_record srq;
        struct pd_record protection_domain;
        struct key_entry key;
        struct item_record item;
        struct wq_record wq;
        struct ind_table_record ind_table;
        struct id_record id;
    };
};

/* False: there is none of that number (any more). Contexts and channels go by their own number, AHs and
 * attachments by that of their item. */
bool object_read(const struct view *view, enum object_kind kind, uint32_t number, struct object *ret);
/* By its QP number. */
bool object_read_qpn(const struct view *view, uint32_t qpn, struct object *ret);

/* Adds "was destroyed 1.3 s ago by thread 4242 (app)"; false: no QP of that number is known to have been, and nothing
 * is added. Of those that were destroyed long ago nothing is known. */
bool words_add_destroyed_qp(const struct view *view, struct words *words, uint32_t qpn);

/* Number by which programs know a QP, also of one that is being destroyed. */
uint32_t object_qpn(const struct object *object);
/* Is it the QP of an id of librdmacm (rdma_create_qp)? */
bool qp_is_of_id(const struct view *view, uint32_t qpn);
/* Its asynchronous events, or of an id its events; NULL: objects of that kind have none. */
const struct event_record *object_async_events(const struct object *object);

/* "QP 0x00012a", "MR with lkey 0x1200"... */
struct label {
    char text[128];
};
struct label object_label(const struct view *view, const struct object *object);
/* "QP", "MRs"... */
const char *object_kind_name(enum object_kind kind, uint64_t count);
/* "ibv_destroy_qp"... */
const char *object_destroy_verb(enum object_kind kind);
/* The call that waits, where it may be another one. */
const char *object_waiting_verb(const struct object *object);

/* Visits objects of all kinds, or of those in `kinds` (bit 1 << kind); visit returns false to end it. */
#define ALL_KINDS ((1u << OBJECT_KINDS) - 1)
void objects_for_each(const struct view *view, unsigned kinds,
                      bool (*visit)(const struct view *view, const struct object *object, void *argument),
                      void *argument);

/* holders.c: who holds what */

/* Does `user` keep `object` from being destroyed? */
bool object_holds(const struct view *view, const struct object *user, const struct object *object);

/* A bounded list of objects by name, and how many there are of each kind. */
#define LISTED_MAX 32u
struct listed {
    unsigned count; /* in the list */
    struct {
        enum object_kind kind;
        uint32_t number;
    } list[LISTED_MAX];
    uint64_t total, of_kind[OBJECT_KINDS];
};
void listed_add(struct listed *listed, const struct object *object);
/* Those who hold it. */
void listed_holders(const struct view *view, const struct object *object, struct listed *ret);
/* Those of a context, or of all (NO_OBJECT), without the contexts themselves. */
void listed_children(const struct view *view, uint32_t context, struct listed *ret);
/* "2 QPs and 1 CQ" */
void words_add_counts(struct words *words, const struct listed *listed);

/* describe.c */

/* One paragraph about an object at that level of indentation; key as in out.h. stack_frames: at most so many
 * of the stack that made it. */
void object_describe(const struct view *view, struct out *out, const char *key, unsigned level,
                     const struct object *object, unsigned stack_frames);
/* The same with what matters to speed: paths, and what peers have mapped. */
void object_describe_listed(const struct view *view, struct out *out, const char *key, unsigned level,
                            const struct object *object, unsigned stack_frames);
/* The same of a QP in the paragraph of its error: without the words that are not about that. */
void object_describe_failed(const struct view *view, struct out *out, const char *key, unsigned level,
                            const struct object *object, unsigned stack_frames);
/* All of a list. */
void listed_describe(const struct view *view, struct out *out, const char *key, unsigned level,
                     const struct listed *listed, unsigned stack_frames);
/* "used by:", and all of them. */
void holders_describe(const struct view *view, struct out *out, const struct listed *holders,
                      unsigned stack_frames);

/* fault.c: the state to which its first error moves a QP, which is told before the QP is in it. */
uint32_t fault_state(const struct view *view, const struct object *qp);

/* processes.c: threads, stacks, times */

/* "3.2 s ago" */
void words_add_age(struct words *words, uint64_t ms);
void words_add_duration(struct words *words, uint64_t ms);
/* "thread 4242 (worker)" */
void words_add_thread(const struct view *view, struct words *words, uint32_t thread);
/* Frames, one per line. */
void stack_describe(const struct view *view, struct out *out, const char *key, unsigned level, uint32_t stack,
                    unsigned lines);
/* Has stack_describe() anything to say? */
bool stack_is_recorded(const struct view *view, uint32_t stack);
/* wr_id as text, in a list; and alone, where both notations fit. */
void words_add_wr_id(struct words *words, uint64_t wr_id);
void words_add_one_wr_id(struct words *words, uint64_t wr_id);
/* A GID or the IPv4 address in it. */
void words_add_gid(struct words *words, const uint8_t gid[16]);
/* Is that process stopped, according to /proc? */
bool process_is_stopped(const struct view *view, int32_t pid);

#endif
