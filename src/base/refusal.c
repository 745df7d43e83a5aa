/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/refusal.h"

#include <errno.h>

static __thread struct refusal refusal; /* of the call that the thread is in */

cold_path int refuse(int error, enum refusal_form form, const char *argument, int64_t value, uint64_t low,
                     uint64_t high)
{
    refusal = (struct refusal){form, error, argument, value, low, high, 0, 0};
    return error;
}

cold_path int refuse_range(const char *argument, int64_t value, uint64_t low, uint64_t high)
{
    return refuse(-EINVAL, REFUSAL_RANGE, argument, value, low, high);
}

cold_path int refuse_bits(int error, const char *argument, enum refusal_bits names, uint64_t value,
                          uint64_t allowed)
{
    return refuse(error, REFUSAL_BITS, argument, (int64_t)value, names, allowed);
}

cold_path int refuse_null(const char *argument)
{
    return refuse(-EINVAL, REFUSAL_NULL, argument, 0, 0, 0);
}

cold_path int refuse_elsewhere(const char *argument)
{
    return refuse(-EINVAL, REFUSAL_ELSEWHERE, argument, 0, 0, 0);
}

cold_path int refuse_unsupported(const char *argument, int64_t value)
{
    return refuse(-EOPNOTSUPP, REFUSAL_UNSUPPORTED, argument, value, 0, 0);
}

cold_path int refuse_invalid(const char *argument, int64_t value)
{
    return refuse(-EINVAL, REFUSAL_INVALID, argument, value, 0, 0);
}

cold_path int refuse_count(const char *of_what, uint64_t count)
{
    return refuse(-ENOMEM, REFUSAL_COUNT, of_what, (int64_t)count, 0, 0);
}

cold_path int refuse_memory(void)
{
    return refuse(-ENOMEM, REFUSAL_MEMORY, "", 0, 0, 0);
}

cold_path void refusal_name_object(int error, uint32_t kind, uint32_t number)
{
    if (refusal.error != error)
        refusal = (struct refusal){.form = REFUSAL_UNSAID, .error = error, .argument = ""};
    refusal.kind = kind;
    refusal.number = number;
}

bool refusal_take(int error, struct refusal *ret)
{
    bool noted = refusal.error == error;

    *ret = noted ? refusal : (struct refusal){.error = error, .argument = ""};
    refusal.error = 0;
    return noted;
}
