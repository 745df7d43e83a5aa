/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A fault specification, from the environment or a command line: what is read decides without a fault, and what is
 * refused has a reason. */
#include <string.h>

#include "fuzz.h"
#include "inject/rule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512], why[256];
    const char *at = text;
    struct inject_rule rule;
    size_t length;

    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    why[0] = '\0';
    if (inject_parse(text, &rule, why, sizeof(why))) {
        require(rule.every && rule.first && rule.kind < INJECT_KINDS);
        require(strcmp(rule.text, text) == 0);
        for (uint32_t match = 1; match < 10; match++)
            (void)inject_strikes(&rule, match, &(struct inject_point){.index = match});
    } else {
        require(why[0] != '\0');
    }
    while ((length = inject_next(&at)) != 0) {
        require(at >= text && at + length <= text + strlen(text));
        at += length;
    }
    return 0;
}

void fuzz_seeds(fuzz_add *add)
{
    static const char *const seeds[] = {
        "call=ibv_reg_mr errno=ENOMEM n=3 count=all every=2 exe=server pid=7 device=softhca0",
        "call=ibv_post_send,errno=12,percent=0.25,seed=9",
        "completion=REM_ACCESS_ERR opcode=RDMA_WRITE qp=3 side=send n=9",
        "event=device_fatal at=ibv_post_send n=4;packet=drop of=requests percent=12.5 seed=3",
        ("cm=REJECTED reason=STALE_CONNECTION side=passive; cm=DISCONNECTED time=2s; event=port_down "
         "time=1min"),
        "packet=reorder by=3 time=20ms; packet=rate limit=10Mbit; packet=delay time=2s percent=1",
        "limit=max_qp value=4; # a comment\nlimit=max_cqe value=16",
    };

    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++)
        add((const uint8_t *)seeds[i], strlen(seeds[i]));
}
