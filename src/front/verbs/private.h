/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The private node of libibverbs.so.1, SOFTHCA_PRIVATE_3 (abi/libibverbs.map): how librdmacm.so.1 reaches the
 * adapter of the process where verbs do not suffice. Both libraries are always of one build. */
#ifndef FRONT_VERBS_PRIVATE_H
#define FRONT_VERBS_PRIVATE_H

struct cm_agent_calls;

const struct cm_agent_calls *softhca_communication(void);

#endif
