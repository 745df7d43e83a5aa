/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Private symbols of libibverbs, in every version node in which a release of rdma-core has them. A release has one
 * such node: 22 (rdma-core 22 to 24), 25 (to 32), 33, 34 (to 56), 57 (to 58), 59 (to 63), 64, 65. The function for
 * the symbol `name` is defined as provided_name, because the linker takes name and name@@node of one object for two
 * symbols. */
#ifndef FRONT_VERBS_NODES_H
#define FRONT_VERBS_NODES_H

/* clang-format off */
#if __has_attribute(symver) /* with link-time optimisation gcc loses what an asm statement says */
#define NODE(name, at, node)                                                                                 \
    extern __typeof__(provided_##name) provided_##name##_##node                                              \
        __attribute__((visibility("default"), alias("provided_" #name), symver(#name at "IBVERBS_PRIVATE_" #node)));
#else
#define NODE(name, at, node) __asm__(".symver provided_" #name ", " #name at "IBVERBS_PRIVATE_" #node);
#endif
#define DEFAULT(name, node) NODE(name, "@@", node)
#define ALSO(name, node) NODE(name, "@", node)
#define ALSO_FROM_65(name) ALSO(name, 65)
#define ALSO_FROM_64(name) ALSO(name, 64) ALSO_FROM_65(name)
#define ALSO_FROM_59(name) ALSO(name, 59) ALSO_FROM_64(name)
#define ALSO_FROM_57(name) ALSO(name, 57) ALSO_FROM_59(name)

/* By the first node with the symbol. Its default version is 34, or the first one after that. */
#define SINCE_65(name) DEFAULT(name, 65)
#define SINCE_64(name) DEFAULT(name, 64) ALSO_FROM_65(name)
#define SINCE_59(name) DEFAULT(name, 59) ALSO_FROM_64(name)
#define SINCE_34(name) DEFAULT(name, 34) ALSO_FROM_57(name)
#define SINCE_33(name) ALSO(name, 33) SINCE_34(name)
#define SINCE_25(name) ALSO(name, 25) SINCE_33(name)
#define SINCE_22(name) ALSO(name, 22) SINCE_25(name)

/* Symbols that later releases removed. */
#define ONLY_22_TO_25(name) ALSO(name, 22) DEFAULT(name, 25)
#define ONLY_25(name) DEFAULT(name, 25)
/* clang-format on */

#endif
