/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/out.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/types.h"

void out_init(struct out *out, bool json, size_t limit)
{
    *out = (struct out){.json = json, .limit = limit};
}

void out_fini(struct out *out)
{
    free(out->text);
    out->text = NULL;
    out->length = out->room = 0;
}

static void add_bytes(struct out *out, const char *bytes, size_t length)
{
    if (out->cut || length == 0 || out->counting)
        return;
    if (out->length + length > out->limit) {
        out->cut = true;
        return;
    }
    if (out->length + length + 1 > out->room) {
        size_t room = max_of(out->length + length + 1, out->room ? out->room * 2 : (size_t)1024);
        char *text = realloc(out->text, room);

        if (!text) {
            out->cut = true;
            return;
        }
        out->text = text;
        out->room = room;
    }
    memcpy(out->text + out->length, bytes, length);
    out->length += length;
    out->text[out->length] = '\0';
}

static void add(struct out *out, const char *text)
{
    add_bytes(out, text, strlen(text));
}

static bool is_printable(char c)
{
    return c >= ' ' && c <= '~';
}

void printable(char *ret, const char *from, size_t size)
{
    size_t i = 0;

    for (; i < size && from[i]; i++)
        ret[i] = is_printable(from[i]) ? from[i] : '?';
    ret[i] = '\0';
}

/* --- text ----------------------------------------------------------------------------------------------- */

void out_line(struct out *out, unsigned level, const char *format, ...)
{
    static const char blanks[] = "                        ";
    char line[1024];
    va_list arguments;
    int length;

    if (out->json)
        return;
    va_start(arguments, format);
    length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    add_bytes(out, blanks, min_of(level * 4, (unsigned)sizeof(blanks) - 1));
    add_bytes(out, line, min_of((size_t)max_of(length, 0), sizeof(line) - 1));
    add(out, "\n");
}

void words_add(struct words *words, const char *format, ...)
{
    size_t room = sizeof(words->text) - words->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(words->text + words->length, room, format, arguments);
    va_end(arguments);
    words->length += min_of((size_t)max_of(length, 0), room - 1);
}

/* --- JSON ----------------------------------------------------------------------------------------------- */

static void quote(struct out *out, const char *text)
{
    add(out, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            add_bytes(out, "\\", 1);
            add_bytes(out, text, 1);
        } else {
            add_bytes(out, is_printable(*text) ? text : "?", 1);
        }
    }
    add(out, "\"");
}

static bool key_of(struct out *out, const char *key)
{
    if (!out->json)
        return false;
    if (out->comma[out->depth])
        add(out, ",");
    out->comma[out->depth] = true;
    if (key) {
        quote(out, key);
        add(out, ":");
    }
    return true;
}

static void open_level(struct out *out, const char *key, const char *bracket)
{
    if (!key_of(out, key))
        return;
    add(out, bracket);
    if (out->depth + 1 < OUT_DEPTH)
        out->depth++;
    out->comma[out->depth] = false;
}

static void close_level(struct out *out, const char *bracket)
{
    if (!out->json)
        return;
    if (out->depth)
        out->depth--;
    add(out, bracket);
}

void out_begin(struct out *out, const char *key)
{
    open_level(out, key, "{");
}

void out_end(struct out *out)
{
    close_level(out, "}");
}

void out_begin_array(struct out *out, const char *key)
{
    open_level(out, key, "[");
}

void out_end_array(struct out *out)
{
    close_level(out, "]");
}

void out_string(struct out *out, const char *key, const char *value)
{
    if (key_of(out, key))
        quote(out, value);
}

void out_number(struct out *out, const char *key, uint64_t value)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    if (key_of(out, key))
        add(out, digits);
}

void out_signed(struct out *out, const char *key, int64_t value)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%lld", (long long)value);
    if (key_of(out, key))
        add(out, digits);
}

void out_bool(struct out *out, const char *key, bool value)
{
    if (key_of(out, key))
        add(out, value ? "true" : "false");
}

void out_keep_room(struct out *out, size_t bytes)
{
    out->limit = max_of(out->limit, out->length + bytes);
}

void out_mark(struct out *out)
{
    out->head = out->cut ? 0 : out->length;
}

void out_fit(struct out *out)
{
    const size_t end = 64; /* room for the end: the word, a bracket, a newline */

    if (!out->json || (!out->cut && out->length + end <= out->limit))
        return;
    if (!out->head)
        return;
    out->length = out->head;
    out_keep_room(out, end);
    out->cut = false;
    out_bool(out, "cut", true);
}

void out_newline(struct out *out)
{
    if (!out->json)
        return;
    out->comma[0] = false;
    add(out, "\n");
}

/* --- stderr --------------------------------------------------------------------------------------------- */

static void write_all(const char *text, size_t length)
{
    while (length) {
        ssize_t written = sys_write(STDERR_FILENO, text, length);

        if (written == -EINTR)
            continue;
        if (written <= 0)
            return; /* stderr is closed, or full */
        text += written;
        length -= (size_t)written;
    }
}

void out_print(const struct out *out, const char *rest)
{
    char note[112] = "", *line = NULL;
    int length;

    if (out->json) {
        write_all(out->text, out->length);
        return;
    }
    if (rest)
        snprintf(note, sizeof(note),
                 "    (further explanations of this kind are suppressed; %s=json tells all)\n", rest);
    /* One write, so that lines of the program are not in between. On a terminal it may have begun a line. */
    length = asprintf(&line, "%ssofthca[%d]: %s%s", isatty(STDERR_FILENO) ? "\n" : "", (int)getpid(),
                      out->text, note);
    if (length > 0)
        write_all(line, (size_t)length);
    free(line);
}
