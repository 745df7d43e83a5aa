/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Threads, stacks, times and numbers as text. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/gid_text.h"
#include "explain/objects.h"
#include "explain/symbols.h"

#define WR_ID_COUNTERS 1000000

/* --- times and numbers ---------------------------------------------------------------------------------- */

void words_add_duration(struct words *words, uint64_t ms)
{
    if (ms < 1000)
        words_add(words, "%llu ms", (unsigned long long)ms);
    else if (ms < 120000)
        words_add(words, "%llu.%llu s", (unsigned long long)(ms / 1000),
                  (unsigned long long)(ms % 1000 / 100));
    else
        words_add(words, "%llu min", (unsigned long long)(ms / 60000));
}

void words_add_age(struct words *words, uint64_t ms)
{
    words_add_duration(words, ms);
    words_add(words, " ago");
}

/* Small numbers are counters, large ones pointers. */
void words_add_wr_id(struct words *words, uint64_t wr_id)
{
    if (wr_id < WR_ID_COUNTERS)
        words_add(words, "%llu", (unsigned long long)wr_id);
    else
        words_add(words, "0x%llx", (unsigned long long)wr_id);
}

void words_add_one_wr_id(struct words *words, uint64_t wr_id)
{
    words_add_wr_id(words, wr_id);
    if (wr_id > 9 && wr_id < WR_ID_COUNTERS)
        words_add(words, " (0x%llx)", (unsigned long long)wr_id);
}

void words_add_gid(struct words *words, const uint8_t gid[16])
{
    char text[GID_TEXT];

    words_add(words, "%s", gid_text(gid, text));
}

/* --- threads and processes ------------------------------------------------------------------------------ */

static ssize_t read_file(const char *path, char *ret, size_t size)
{
    int saved = errno, fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t length = fd < 0 ? -1 : read(fd, ret, size - 1);

    if (fd >= 0)
        close(fd);
    ret[max_of(length, (ssize_t)0)] = '\0';
    errno = saved;
    return length;
}

void words_add_thread(const struct view *view, struct words *words, uint32_t thread)
{
    char path[64], name[32], clean[32];

    words_add(words, "thread %u", thread);
    if (!view->same_pids)
        return;
    snprintf(path, sizeof(path), "/proc/%d/task/%u/comm", (int)view->pid, thread);
    if (read_file(path, name, sizeof(name)) <= 0) {
        words_add(words, ", which has ended");
        return;
    }
    name[strcspn(name, "\n")] = '\0';
    printable(clean, name, sizeof(clean) - 1);
    words_add(words, " (%s)", clean);
}

static bool ask_whether_stopped(int32_t pid)
{
    char path[64], stat[512];
    const char *state;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (read_file(path, stat, sizeof(stat)) <= 0)
        return false;
    state = strrchr(stat, ')');
    return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

bool process_is_stopped(const struct view *view, int32_t pid)
{
    struct view_asked *asked = view->asked;

    if (!view->same_pids || pid <= 0)
        return false;
    if (!asked)
        return ask_whether_stopped(pid);
    for (unsigned i = 0; i < asked->count; i++) {
        if (asked->of[i].pid == pid)
            return asked->of[i].stopped;
    }
    if (asked->count == VIEW_ASKED)
        return false;
    asked->of[asked->count].pid = pid;
    asked->of[asked->count].stopped = ask_whether_stopped(pid);
    return asked->of[asked->count++].stopped;
}

/* --- stacks --------------------------------------------------------------------------------------------- */

/* The one that was noted last: what was there before may have been unloaded. */
static bool find_module(const struct view *view, uint64_t address, struct module_record *ret)
{
    struct view_walk walk = view_walk(view, &view->header.modules);
    struct module_record record;
    bool found = false;
    uint32_t number;

    while (view_next(&walk, &number, &record)) {
        if (record.state != 1)
            break;
        if (address >= record.start && address < record.end) {
            *ret = record;
            found = true;
        }
    }
    return found;
}

/* One frame, as far as it is known. */
struct where {
    uint64_t address, in_file, offset; /* in the file; from the function's start */
    bool has_module, has_function;
    char path[sizeof(((struct module_record *)0)->path) + 1];
    char function[128];
};

static const char *file_of(const struct where *where)
{
    const char *slash = strrchr(where->path, '/');

    return slash ? slash + 1 : where->path;
}

static void find_frame(const struct view *view, uint64_t address, uint64_t *spent, struct where *ret)
{
    char raw[sizeof(ret->path)], symbol[sizeof(ret->function)];
    struct module_record module;

    *ret = (struct where){.address = address};
    if (!find_module(view, address, &module))
        return;
    ret->has_module = true;
    /* The call itself, not what follows it: it may be the last instruction of its function. */
    ret->in_file = address - 1 - module.bias;
    memcpy(raw, module.path, sizeof(module.path));
    raw[sizeof(module.path)] = '\0';
    printable(ret->path, module.path, sizeof(module.path));
    if (!view->pid ||
        !symbol_find(view->pid, address - 1, raw, ret->in_file, spent, symbol, sizeof(symbol), &ret->offset))
        return;
    ret->has_function = true;
    printable(ret->function, symbol, sizeof(symbol) - 1);
}

static void frame_describe(struct out *out, unsigned level, const struct where *where, bool shown)
{
    out_begin(out, NULL);
    out_number(out, "address", where->address);
    if (where->has_module) {
        out_string(out, "module", where->path);
        out_number(out, "offset", where->in_file);
    }
    if (where->has_function)
        out_string(out, "function", where->function);
    out_end(out);
    if (!shown)
        return;
    if (where->has_function)
        out_line(out, level, "at %s+0x%llx (%s+0x%llx)", where->function, (unsigned long long)where->offset,
                 file_of(where), (unsigned long long)where->in_file);
    else if (where->has_module)
        out_line(out, level, "at %s+0x%llx", file_of(where), (unsigned long long)where->in_file);
    else
        out_line(out, level, "at 0x%llx", (unsigned long long)where->address);
}

/* For verbs that librdmacm calls, the stack is shown from the program's call of librdmacm. */
static unsigned first_of_interest(const struct where *frames, unsigned depth)
{
    unsigned first = 0;

    while (first < depth && strcmp(file_of(&frames[first]), "librdmacm.so.1") == 0)
        first++;
    return first < depth ? first : 0;
}

/* What lies below main(), or below the function of a thread, is the same in every program. */
static unsigned frames_of_interest(const struct where *frames, unsigned depth)
{
    for (unsigned i = 0; i < depth; i++) {
        if (strcmp(frames[i].function, "main") == 0)
            return i + 1;
    }
    while (depth > 1 && (strncmp(file_of(&frames[depth - 1]), "libc.so.", 8) == 0 ||
                         strcmp(frames[depth - 1].function, "_start") == 0))
        depth--;
    return depth;
}

bool stack_is_recorded(const struct view *view, uint32_t stack)
{
    struct stack_record record;

    return stack != 0 && view_record(view, &view->header.stacks, stack, &record) && record.depth;
}

void stack_describe(const struct view *view, struct out *out, const char *key, unsigned level, uint32_t stack,
                    unsigned lines)
{
    struct where frames[STACK_FRAMES];
    struct stack_record record;
    unsigned depth, first, last;

    if (stack == 0 || lines == 0 || out->counting || !view_record(view, &view->header.stacks, stack, &record))
        return;
    depth = min_of((uint32_t)record.depth, (uint32_t)STACK_FRAMES);
    for (unsigned i = 0; i < depth; i++)
        find_frame(view, record.frame[i], &out->symbols_read, &frames[i]);
    last = frames_of_interest(frames, depth);
    first = min_of(first_of_interest(frames, depth), last);
    if (last - first <= lines + 1) /* "and 1 more" is no shorter */
        lines = last - first;
    out_begin_array(out, key);
    for (unsigned i = 0; i < depth; i++)
        frame_describe(out, level, &frames[i], i >= first && i < first + lines);
    if (last - first > lines)
        out_line(out, level, "and %u more", last - first - lines);
    out_end_array(out);
}
