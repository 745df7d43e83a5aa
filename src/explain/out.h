/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Output of explanations: text or JSON. Each fact is written by two calls, one per format; the functions of
 * the other format do nothing. Strings may come from another process: unprintable bytes are replaced. */
#ifndef EXPLAIN_OUT_H
#define EXPLAIN_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "explain/remarks.h"

#define OUT_DEPTH 16

struct out {
    char *text; /* ends with a zero; NULL before the first byte */
    size_t length, room;
    size_t limit;   /* bytes; what comes behind it is dropped */
    bool json, cut; /* cut: the limit was met, or no memory */
    unsigned depth;
    uint64_t topic; /* distinguishes explanations with different first lines */
    bool comma[OUT_DEPTH];
    size_t head;           /* where the first line ends, for out_fit() */
    uint64_t symbols_read; /* for symbol_find() */
    /* Nothing is written, only what follows is filled in. */
    bool counting;
    bool wrong; /* the explanation is of something that failed or hangs, and not counted below */
    uint64_t remarks[REMARKS];
};

void out_init(struct out *out, bool json, size_t limit);
void out_fini(struct out *out);

/* --- text: a line each, indented by levels of four */
void out_line(struct out *out, unsigned level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* --- JSON: key NULL within arrays */
void out_begin(struct out *out, const char *key);
void out_end(struct out *out);
void out_begin_array(struct out *out, const char *key);
void out_end_array(struct out *out);
void out_string(struct out *out, const char *key, const char *value);
void out_number(struct out *out, const char *key, uint64_t value);
void out_signed(struct out *out, const char *key, int64_t value);
void out_bool(struct out *out, const char *key, bool value);
/* Within the outermost object: what does not fit is dropped from the mark on (out_mark()), and "cut" reports
 * that; JSON lines stay whole. What was written before the mark is always kept. */
void out_keep_room(struct out *out, size_t bytes);
void out_mark(struct out *out);
void out_fit(struct out *out);
/* Ends a document: one line. */
void out_newline(struct out *out);

/* Writes it to stderr, as one write. rest: text of its kind is suppressed from now on, and this variable set to json
 * shows it; NULL: no. */
void out_print(const struct out *out, const char *rest);

/* A string in a buffer: cut where it is full. */
struct words {
    char text[800];
    size_t length;
};
void words_add(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Copies at most `size` bytes of text from another process, printable bytes only, and terminates them. ret:
 * size + 1 bytes. */
void printable(char *ret, const char *from, size_t size);

#endif
