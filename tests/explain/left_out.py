# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The programs of tests/explain under softhca watch (test_watch.py): what is not run there, and which fact of the adapter its first
line needs. docs/watch.md has the same list by reason."""

OWN_QUEUE = "how far the adapter has come with a work request is unknown"
UNREAD = "how many completions and events are unread the adapter and the kernel know"
PEER = "the peer is another adapter's"
CREATION = "what an adapter can create it knows itself; a creation that fails is not told of"
LIBRDMACM = "librdmacm decides by states of its own"
FREED = "other libraries use freed memory: they do not refuse the call, and may crash in it"
DATAGRAMS = "who drops a datagram or a frame is the adapter"
NO_EXTENDED_CQ = "the lock of an extended CQ is the provider's"

REASONS = {
    "situations": {
        "overrun": UNREAD, "lost-srq-receive": OWN_QUEUE, "unsignaled": OWN_QUEUE, "nobody-there": PEER, "stopped-peer": PEER,
        "fence": OWN_QUEUE, "read-depth": OWN_QUEUE, "dead-peer": PEER, "sqd": OWN_QUEUE,
        "failing-program": "softhca watch has no line at exit", "failing-quickly": "softhca watch has no line at exit",
        "xrc-qp-opened": "who else has an XRC QP open the kernel knows",
    },
    "situations_cm": {"receive-after-accept": PEER},
    "mistakes": {
        "datagram-without-grh": "how long the message was is not in the completion of the receive",
        "far-stopped": "an adapter answers for a process that is stopped",
        "wrong-psn": "which NAKs came the adapter knows: it is told as any silence",
    },
    "hangs": {
        "lost-wake-up": UNREAD, "notify-once": UNREAD, "notify-never": UNREAD, "only-solicited": UNREAD,
        "poll-not-ended": NO_EXTENDED_CQ, "poll-held": NO_EXTENDED_CQ,
        "never-signaled": OWN_QUEUE, "no-receive-posted": PEER, "srq-ran-dry": PEER, "peer-stopped": PEER, "peer-stopped-of-many": PEER,
        "async-event-unread": UNREAD, "request-unread": UNREAD, "backlog-full": UNREAD, "request-put-aside": LIBRDMACM,
    },
    "refused": {
        "no-such-gid": "which GIDs a port has the adapter knows", "gid-of-other-family": "which GIDs a port has the adapter knows",
        "no-address-handle": "other libraries crash with a NULL address handle", "full-of-unsignaled": OWN_QUEUE, "send-queue-too-long": CREATION, "inline-trial": CREATION, "too-many-sges-asked": CREATION,
        "no-type": CREATION, "cq-of-other-context": CREATION, "empty-cq": CREATION, "wrong-vector": CREATION, "ah-without-grh": CREATION,
        "negative-vector": CREATION, "type-of-wq": CREATION, "mask-of-domain": CREATION, "srq-without-type": CREATION,
        "wq-in-reset": "WQs are not looked at by rules", "srq-too-long": CREATION, "flow-on-rc": CREATION, "trial": CREATION, "connect-before-route": LIBRDMACM,
        "qp-before-address": LIBRDMACM, "accept-on-listener": LIBRDMACM, "route-before-address": LIBRDMACM,
        "private-data-too-long": LIBRDMACM, "pd-of-other-device": LIBRDMACM, "port-taken": LIBRDMACM, "port-of-the-system": LIBRDMACM,
        "address-of-nobody": LIBRDMACM,
    },
    "gone": {name: FREED for name in (
        "qp-twice", "mr-twice", "cq-twice", "srq-twice", "others-twice", "device-twice", "post-after-destroy", "send-after-destroy",
        "query-after-destroy", "modify-after-destroy", "poll-after-destroy", "arm-after-destroy", "register-after-dealloc", "qp-of-id-twice",
        "channel-before-id", "channel-twice", "id-twice", "id-after-destroy")},
    "drops": {name: DATAGRAMS for name in (
        "wrong-qkey", "no-receive", "without-grh", "not-ready", "qp-is-gone", "not-attached", "no-rule")},
    "connections": {name: "softhca check reads both ends' records, which a NIC's peer does not have" for name in (
        "all-well", "psn", "mtu", "dest-qpn", "type", "init", "read-depth", "many-reads", "no-retries", "qp-rights", "mr-rights")},
}
# What tests of situations and situations_cm run, under names of their own; of the others one per name is made.
RUN = {
    "situations": ["wrong-cq-acknowledged", "unacknowledged-event", "own-event", "mr-left-behind", "mr-freed-before-users", "wrong-order",
                   "cq-before-qp", "domain-in-use", "xrcd-in-use", "dm-in-use", "flow-in-use", "no-receive", "leak-at-close", "leak-at-exit",
                   "all-well"],
    "situations_cm": ["error-event", "kept-event", "forgotten-id"],
}
# What rxe of Linux 6.1 does otherwise than these programs expect.
SUCCEEDS = "rxe lets the call succeed"
MORE_SLOTS = "rxe gives more slots than it is asked for"
NOT_ON_RXE = {
    "mistakes": {
        "rkey-is-lkey": "rxe has one number for both keys of an MR", "lkey-is-rkey": "rxe has one number for both keys of an MR",
        "no-reads-granted": "rxe lets a READ wait for ever, where max_rd_atomic is 0",
        "too-many-reads": "rxe takes more READs at once than max_dest_rd_atomic",
        "wrong-mtu": "rxe takes packets of another path MTU", "receive-too-small": "rxe answers with the NAK of another error",
        "window-rebound": "rxe refuses the second bind",
    },
    "refused": {
        "access-of-qp": SUCCEEDS, "mtu-in-bytes": SUCCEEDS, "no-bytes": SUCCEEDS, "too-many-reads": SUCCEEDS,
        "full-for-a-while": MORE_SLOTS, "receive-queue-full": MORE_SLOTS,
        "read-on-ud": "the provider of rxe crashes with a NULL address handle",
    },
}
