/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains: what several processes, or several ibv_xrcd of one, have in common. */
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
    uint64_t device, inode; /* of the file; private ones have none */
    uid_t owner;            /* of the file */
    mode_t mode;
    /* Private ones have neither: */
    struct xrc_descriptor {
        int fd;
        dev_t device;
        ino_t inode; /* which file that was when it was opened */
    } mark,          /* a socket by which others see that this process has it open */
        pin;         /* of the file: its inode is not another file's meanwhile */
    bool is_private;
    _Atomic uint32_t references; /* XRCDs, and QPs that outlive theirs (open_qp.c) */
};

/* flags: oflags of ibv_open_xrcd(). 0, -EBADF, -EINVAL (O_EXCL, and there is one), -EAGAIN (no O_CREAT, and
 * there is none), -ENOMEM, -EMFILE. May sleep. */
int xrc_domain_take(int fd, int flags, struct xrc_domain **ret_domain);
/* One more, of somebody who knows that there is one. Any lock held. */
void xrc_domain_hold(struct xrc_domain *domain);
void xrc_domain_drop(struct xrc_domain *domain);
/* Does a process of that user, which says that it has the domain open, belong there? One of ours, and
 * whoever the file's mode lets read or write. */
bool xrc_domain_admits(const struct xrc_domain *domain, uid_t uid);
/* In the child of a fork. */
void xrc_domains_after_fork_in_child(void);

#endif
