/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inject/rule.h"

#define FILE_MAX (64u << 10)

static int refuse(const char *from, const char *text, size_t length, const char *why)
{
    fprintf(stderr, "softhca: %s'%.*s': %s (man 7 softhca-fault)\n", from, (int)length, text, why);
    return -EINVAL;
}

/* Each specification of the text must be one that the adapter takes. */
static int check(const char *from, const char *text)
{
    char one[INJECT_TEXT_MAX], why[256];
    struct inject_rule rule;
    unsigned count = 0;
    size_t length;

    for (; (length = inject_next(&text)) != 0; text += length, count++) {
        if (length >= sizeof(one)) {
            snprintf(why, sizeof(why), "longer than %u characters", INJECT_TEXT_MAX - 1);
            return refuse(from, text, 60, why);
        }
        memcpy(one, text, length);
        one[length] = '\0';
        if (!inject_parse(one, &rule, why, sizeof(why)))
            return refuse(from, one, length, why);
        if (count == INJECT_RULES_MAX) {
            snprintf(why, sizeof(why), "more than %u faults, as many as a process can have",
                     INJECT_RULES_MAX);
            return refuse(from, one, length, why);
        }
    }
    return count ? 0 : refuse(from, "", 0, "it names no fault");
}

static int append(char **list, const char *text)
{
    char *longer;

    if (asprintf(&longer, "%s%s%s", *list ? *list : "", *list ? "\n" : "", text) < 0)
        return -ENOMEM;
    free(*list);
    *list = longer;
    return 0;
}

static int add_file(const char *name, char **list)
{
    static char text[FILE_MAX];
    char from[200];
    FILE *file = fopen(name, "re");
    size_t length;
    int error;

    if (!file) {
        fprintf(stderr, "softhca: cannot read %s: %s\n", name, strerror(errno));
        return -ENOENT;
    }
    length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    snprintf(from, sizeof(from), "%s: ", name);
    error = check(from, text);
    return error ? error : append(list, text);
}

int fault_add(const char *option, const char *argument, char **list)
{
    int error;

    if (argument[0] == '@')
        return add_file(argument + 1, list);
    error = check(option, argument);
    return error ? error : append(list, argument);
}
