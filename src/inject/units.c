/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Numbers with a unit. */
#include "base/types.h"
#include "inject/names.h"

#define UNIT_DIGITS_MAX 9u

struct unit {
    const char *name;
    uint64_t value;
};

size_t inject_digits(const char *word, size_t length, uint64_t most, uint64_t *ret)
{
    uint64_t number = 0;
    size_t digits = 0;

    for (; digits < length && word[digits] >= '0' && word[digits] <= '9'; digits++) {
        const uint64_t digit = (uint64_t)(word[digits] - '0');

        if (digit > most || number > (most - digit) / 10)
            return 0;
        number = number * 10 + digit;
    }
    *ret = number;
    return digits;
}

static bool read_with_unit(const struct unit *units, size_t count, const char *word, size_t length,
                           uint64_t most, uint64_t *ret)
{
    uint64_t number = 0;
    const size_t digits = inject_digits(word, length, UINT64_MAX, &number);

    if (digits > UNIT_DIGITS_MAX)
        return false;
    for (size_t i = 0; digits && number && i < count; i++) {
        if (!inject_is_word(units[i].name, word + digits, length - digits))
            continue;
        if (number > most / units[i].value)
            return false;
        *ret = number * units[i].value;
        return true;
    }
    return false;
}

bool inject_duration(const char *word, size_t length, uint64_t *ret_ns)
{
    static const struct unit units[] = {
        {"ns", 1}, {"us", NS_PER_US}, {"ms", NS_PER_MS}, {"s", NS_PER_S}, {"min", 60 * NS_PER_S}};

    return read_with_unit(units, array_size(units), word, length, INJECT_TIME_MAX, ret_ns);
}

bool inject_bit_rate(const char *word, size_t length, uint64_t *ret_bits)
{
    static const struct unit units[] = {{"bit", 1}, {"kbit", 1000}, {"Mbit", 1000000}, {"Gbit", 1000000000}};

    return read_with_unit(units, array_size(units), word, length, INJECT_RATE_MAX, ret_bits);
}
