/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../softhca/screen.h"

static SCREEN *terminal;

static int begin(void)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return -1;
    /* newterm(): initscr() ends the process if the terminal is not known. */
    terminal = newterm(NULL, stdout, stdin);
    if (!terminal)
        return -1;
    set_term(terminal);
    cbreak();
    noecho();
    nonl();
    curs_set(0);
    keypad(stdscr, TRUE);
    set_escdelay(25);
    if (has_colors()) {
        start_color();
        use_default_colors();
        init_pair(1, COLOR_GREEN, -1);
        init_pair(2, COLOR_RED, -1);
        init_pair(3, COLOR_BLACK, COLOR_CYAN);
    }
    return 0;
}

static void end(void)
{
    if (!terminal)
        return;
    endwin();
    delscreen(terminal);
    terminal = NULL;
}

static void size(int *ret_rows, int *ret_columns)
{
    getmaxyx(stdscr, *ret_rows, *ret_columns);
}

static void clear_all(void)
{
    erase();
}

static attr_t attribute(enum screen_style style)
{
    switch (style) {
    case SCREEN_BOLD:
        return A_BOLD;
    case SCREEN_DIM:
        return A_DIM;
    case SCREEN_TITLE:
        return A_REVERSE;
    case SCREEN_SELECTED:
        return has_colors() ? (attr_t)COLOR_PAIR(3) : A_STANDOUT;
    case SCREEN_GOOD:
        return has_colors() ? (attr_t)COLOR_PAIR(1) : A_NORMAL;
    case SCREEN_BAD:
        return (has_colors() ? (attr_t)COLOR_PAIR(2) : A_NORMAL) | A_BOLD;
    case SCREEN_PLAIN:
        break;
    }
    return A_NORMAL;
}

static void put(int row, int column, enum screen_style style, const char *text)
{
    int rows, columns;

    size(&rows, &columns);
    if (row < 0 || row >= rows || column < 0 || column >= columns)
        return;
    attrset((int)attribute(style));
    mvaddnstr(row, column, text, columns - column);
    attrset(A_NORMAL);
}

static void show(void)
{
    refresh();
}

static int translate(int key)
{
    switch (key) {
    case KEY_UP:
        return SCREEN_UP;
    case KEY_DOWN:
        return SCREEN_DOWN;
    case KEY_LEFT:
        return SCREEN_LEFT;
    case KEY_RIGHT:
        return SCREEN_RIGHT;
    case KEY_PPAGE:
        return SCREEN_PAGE_UP;
    case KEY_NPAGE:
        return SCREEN_PAGE_DOWN;
    case KEY_HOME:
        return SCREEN_HOME;
    case KEY_END:
        return SCREEN_END;
    case KEY_ENTER:
    case '\r':
    case '\n':
        return SCREEN_ENTER;
    case 27:
        return SCREEN_ESCAPE;
    case KEY_BACKSPACE:
    case 127:
    case 8:
        return SCREEN_ERASE;
    case KEY_RESIZE:
        return SCREEN_RESIZED;
    default:
        return key;
    }
}

static int wait_for_key(int timeout_ms)
{
    struct pollfd input = {.fd = STDIN_FILENO};
    int key;

    timeout(timeout_ms);
    key = getch();
    if (key != ERR)
        return translate(key);
    /* Nothing came, or nothing can come any more. */
    if (poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)))
        return SCREEN_CLOSED;
    return SCREEN_NO_KEY;
}

extern const struct screen softhca_screen;
__attribute__((visibility("default"))) const struct screen softhca_screen = {
    .interface = SCREEN_INTERFACE,
    .begin = begin,
    .end = end,
    .size = size,
    .clear = clear_all,
    .put = put,
    .show = show,
    .key = wait_for_key,
};
