/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The private version node SOFTHCA_PRIVATE_4 of libibverbs.so.1 (abi/libibverbs.map): librdmacm.so.1 uses it where
 * verbs do not suffice. Both libraries always come from one build. */
#ifndef FRONT_VERBS_PRIVATE_H
#define FRONT_VERBS_PRIVATE_H

struct cm_agent_calls;

const struct cm_agent_calls *softhca_communication(void);

#endif
