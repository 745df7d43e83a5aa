/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ICRC of packets with 4 KiB of payload that lie in the cache, as the network path computes and checks
 * it, on one processor. */
#include "common.h"

#include <string.h>

#include "wire/codec.h"
#include "wire/crc.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

enum { SAMPLES = 101, PACKETS = 16, PAYLOAD = 4096, ROUNDS = 64 };

static uint8_t packets[PACKETS][BTH_LENGTH + PAYLOAD + ICRC_LENGTH];

static struct icrc_path path_of(unsigned number)
{
    struct icrc_path path = {
        .source_port = 50000,
        .destination_port = ROCE_UDP_PORT,
        .identification = (uint16_t)number,
        .dont_fragment = true,
    };

    memcpy(path.source, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
    memcpy(path.destination, path.source, 16);
    return path;
}

static void store(unsigned number)
{
    const struct icrc_path path = path_of(number);
    uint8_t *bytes = packets[number];

    icrc_store(icrc_of(&path, bytes, sizeof(packets[0])), bytes + BTH_LENGTH + PAYLOAD);
}

static bool check(unsigned number)
{
    const struct icrc_path path = path_of(number);

    return icrc_check(&path, packets[number], sizeof(packets[0]));
}

static void measure(void)
{
    static uint64_t storing[SAMPLES], checking[SAMPLES];
    const double bytes = (double)((uint64_t)ROUNDS * PACKETS * PAYLOAD);

    for (unsigned s = 0; s < SAMPLES; s++) {
        uint64_t began = now_ns(), between;

        for (unsigned i = 0; i < ROUNDS * PACKETS; i++)
            store(i % PACKETS);
        between = now_ns();
        for (unsigned i = 0; i < ROUNDS * PACKETS; i++)
            if (!check(i % PACKETS))
                exit(1);
        checking[s] = now_ns() - between;
        storing[s] = between - began;
    }
    printf("store_gbps %.3f check_gbps %.3f by %s\n", bytes / (double)median(storing, SAMPLES),
           bytes / (double)median(checking, SAMPLES), crc_method_name(crc_method()));
}

int main(int argc, char **argv)
{
    const bool each = argc == 3 && !strcmp(argv[2], "each");

    if (argc != 2 && !each) {
        fprintf(stderr,
                "usage: %s CPU [each]\n"
                "The fastest method on this processor; each: all that it supports.\n",
                argv[0]);
        return 2;
    }
    pin(atoi(argv[1]));
    memset(packets, 0x5a, sizeof(packets));
    crc_choose(now_ns);
    if (!each)
        measure();
    for (enum crc_method method = 0; each && method < CRC_METHODS; method++)
        if (crc_use(method))
            measure();
    return 0;
}
