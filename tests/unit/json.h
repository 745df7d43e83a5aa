/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Is it JSON (RFC 8259), as far as SoftHCA writes it: objects, arrays, strings, whole numbers, true and
 * false? */
#ifndef UNIT_JSON_H
#define UNIT_JSON_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Each takes what it is about, and returns what is behind it; NULL: it is something else. */
static const char *json_value(const char *text);

static inline const char *json_string(const char *text)
{
    if (*text++ != '"')
        return NULL;
    for (; *text != '"'; text++) {
        if (*text == '\\' && !strchr("\"\\/bfnrt", *++text))
            return NULL;
        if ((unsigned char)*text < ' ')
            return NULL;
    }
    return text + 1;
}

static inline const char *json_number(const char *text)
{
    text += *text == '-';
    if (!isdigit((unsigned char)*text) || (*text == '0' && isdigit((unsigned char)text[1])))
        return NULL;
    while (isdigit((unsigned char)*text))
        text++;
    return text;
}

static inline const char *json_list(const char *text, char end, bool named)
{
    if (*++text == end)
        return text + 1;
    for (;; text++) {
        if (named) {
            text = json_string(text);
            if (!text || *text++ != ':')
                return NULL;
        }
        text = json_value(text);
        if (!text || *text == end)
            return text ? text + 1 : NULL;
        if (*text != ',')
            return NULL;
    }
}

static const char *json_value(const char *text)
{
    switch (*text) {
    case '{':
        return json_list(text, '}', true);
    case '[':
        return json_list(text, ']', false);
    case '"':
        return json_string(text);
    case 't':
        return strncmp(text, "true", 4) ? NULL : text + 4;
    case 'f':
        return strncmp(text, "false", 5) ? NULL : text + 5;
    default:
        return json_number(text);
    }
}

/* Lines, each a value. */
static inline bool json_lines(const char *text)
{
    while (*text) {
        text = json_value(text);
        if (!text || *text++ != '\n')
            return false;
    }
    return true;
}

#endif
