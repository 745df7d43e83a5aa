/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A guest for QEMU without an operating system, that notices when its memory is not what it was. Most of it
 * is written once and then read, a part is written again in each round; the serial port says how it goes:
 * '.' after a round, and '!' with silence after it where a word is wrong. */
#include <stdint.h>

#define MULTIBOOT 0x1BADB002u

enum {
    KEPT = 4 << 20,
    CHANGED = 52 << 20,
    END = 60 << 20,
    SERIAL = 0x3f8,
    SERIAL_STATUS = SERIAL + 5,
    READY = 0x20,
};

__attribute__((section(".multiboot"), used)) static const uint32_t header[] = {MULTIBOOT, 0, -MULTIBOOT};

static void say(uint8_t letter)
{
    uint8_t status;

    do
        __asm__ volatile("inb %1, %0" : "=a"(status) : "Nd"((uint16_t)SERIAL_STATUS));
    while (!(status & READY));
    __asm__ volatile("outb %0, %1" : : "a"(letter), "Nd"((uint16_t)SERIAL));
}

static uint32_t word(uint32_t at, uint32_t round)
{
    return at * 2654435761u + round;
}

static void expect(uint32_t at, uint32_t round)
{
    if (*(volatile uint32_t *)(uintptr_t)at == word(at, round))
        return;
    say('!');
    for (;;)
        __asm__ volatile("hlt");
}

static void write(uint32_t at, uint32_t round)
{
    *(volatile uint32_t *)(uintptr_t)at = word(at, round);
}

__attribute__((used)) static void run(void)
{
    for (uint32_t at = KEPT; at < END; at += 4)
        write(at, 0);
    for (uint32_t round = 0;; round++) {
        for (uint32_t at = KEPT; at < CHANGED; at += 64)
            expect(at, 0);
        for (uint32_t at = CHANGED; at < END; at += 4) {
            expect(at, round);
            write(at, round + 1);
        }
        say('.');
    }
}

__asm__(".globl _start\n"
        "_start:\n"
        "    mov $0x300000, %esp\n"
        "    call run\n");
