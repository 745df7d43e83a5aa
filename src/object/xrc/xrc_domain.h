/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains: what all ibv_xrcd of this process with the same file share. */
#ifndef OBJECT_XRC_XRC_DOMAIN_H
#define OBJECT_XRC_XRC_DOMAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/lock.h"

struct xrc_domain {
    struct list all;
    uint64_t device, inode; /* of the file; a private domain has none */
    uid_t owner;            /* of the file */
    mode_t mode;
    bool is_unlinked; /* when it was opened */
    /* Not in private domains: */
    struct xrc_descriptor {
        int fd;
        dev_t device;
        ino_t inode; /* of the descriptor when it was opened, because the program may close it */
    } user_name,     /* a bound socket by which other processes see that this process has the domain open */
        pin;         /* of the file, so that its inode is not reused */
    bool is_private; /* opened without a file (fd -1): no other ibv_xrcd shares it */
    _Atomic uint32_t references; /* XRCDs, and QPs that remain after their XRCD is closed (open_qp.c) */
};

/* Opens a domain. flags: oflags of ibv_open_xrcd(). 0, -EBADF, -EINVAL (O_EXCL and the domain exists), -EAGAIN (no
 * O_CREAT and the domain does not exist), -ENOMEM, -EMFILE. May sleep. */
int xrc_domain_take(int fd, int flags, struct xrc_domain **ret_domain);
/* Adds a reference; the caller holds one. Any lock may be held. */
void xrc_domain_get(struct xrc_domain *domain);
void xrc_domain_drop(struct xrc_domain *domain);
/* May a process of user `uid` have the domain open? True for our own user and root, and if the file's mode lets the
 * user read or write. */
bool xrc_domain_admits(const struct xrc_domain *domain, uid_t uid);
void xrc_domains_after_fork_in_child(void);

#endif
