/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links between living processes, where the kernel refuses a call. */
#include "test_local_sides.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* In place of the C library's: refuses the next calls of that number. */
static _Atomic long refused_number = -1;
static _Atomic unsigned refusals;
static int refused_error;

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list list;

    va_start(list, number);
    for (unsigned i = 0; i < array_size(a); i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == atomic_load(&refused_number) && atomic_load(&refusals)) {
        atomic_fetch_sub(&refusals, 1);
        errno = refused_error;
        return -1;
    }
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void refuse(long number, int error, unsigned times)
{
    refused_error = error;
    atomic_store(&refused_number, number);
    atomic_store(&refusals, times);
}

/* --- doorbells ---------------------------------------------------------------------------------------------- */

static void sleeps(unsigned number)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

    publish_qpn(number);
    while (!atomic_load(&board->word[1])) /* until the link is there */
        turn(1);
    for (;;) {
        if (local_prepare_sleep(ATTENTION_ASLEEP)) {
            atomic_store(&board->word[2], 1);
            CHECK(poll(&event, 1, -1) == 1);
            local_dispatch(&(bool){false});
        }
        rundown_enter();
        local_poll(16);
        rundown_exit();
        if (seen.packets)
            break;
    }
    atomic_store(&board->word[3], 1);
    meet(0, 2);
}

static void rings_in_vain(unsigned number)
{
    static const int errors[] = {ENOMEM, EAGAIN, ENOBUFS};
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);

    CHECK(link);
    atomic_store(&board->word[1], 1);
    UNTIL(atomic_load(&board->word[2]));
    refuse(SYS_sendto, errors[atomic_load(&board->word[4])], 3);
    send_text(link_lane(link, mine), other, mine, "wake up");
    UNTIL(atomic_load(&board->word[3]));
    CHECK(atomic_load(&refusals) == 0);
    meet(0, 2);
}

static void test_a_doorbell_that_the_kernel_does_not_take_is_rung_again(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        board_clear();
        atomic_store(&board->word[4], i);
        RUN_SIDES(sleeps, rings_in_vain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_doorbell_that_the_kernel_does_not_take_is_rung_again),
    };

    return run_local_tests("local_refusals", tests);
}
