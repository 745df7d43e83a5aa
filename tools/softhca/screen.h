/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A terminal, as softhca top uses it. libsofthca-screen.so (tools/screen) provides it with ncurses, and is loaded by
 * softhca top alone: nothing else needs a terminal library. */
#ifndef SOFTHCA_SCREEN_H
#define SOFTHCA_SCREEN_H

enum screen_style {
    SCREEN_PLAIN,
    SCREEN_BOLD,
    SCREEN_DIM,
    SCREEN_TITLE,
    SCREEN_SELECTED,
    SCREEN_GOOD,
    SCREEN_BAD
};

/* Keys beyond characters. */
enum screen_key {
    SCREEN_NO_KEY = -1, /* the time is over */
    SCREEN_CLOSED = -2, /* there is no terminal any more */
    SCREEN_UP = 0x1000,
    SCREEN_DOWN,
    SCREEN_LEFT,
    SCREEN_RIGHT,
    SCREEN_PAGE_UP,
    SCREEN_PAGE_DOWN,
    SCREEN_HOME,
    SCREEN_END,
    SCREEN_ENTER,
    SCREEN_ESCAPE,
    SCREEN_ERASE,
    SCREEN_RESIZED,
};

#define SCREEN_INTERFACE 1
struct screen {
    int interface; /* SCREEN_INTERFACE */
    /* 0; -1: not a terminal, or one that ncurses does not know. */
    int (*begin)(void);
    void (*end)(void);
    void (*size)(int *ret_rows, int *ret_columns);
    void (*clear)(void);
    void (*put)(int row, int column, enum screen_style style,
                const char *text); /* what does not fit is cut */
    void (*show)(void);
    int (*key)(int timeout_ms);
};

/* The module's one symbol. */
#define SCREEN_SYMBOL "softhca_screen"

#endif
