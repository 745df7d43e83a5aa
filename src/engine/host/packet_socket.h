/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Frames to and from the real interface of a device (packet_socket.c). */
#ifndef ENGINE_HOST_PACKET_SOCKET_H
#define ENGINE_HOST_PACKET_SOCKET_H

#include <stdint.h>
#include <sys/uio.h>

struct device;

/* A RAW_PACKET QP of the device is going to send. Where that is not allowed, the log says why, once. No lock
 * held. */
void packet_socket_open(const struct device *device);
/* Its flow rules have come or gone. No lock held. */
void packet_socket_listen(const struct device *device);
/* Any thread, a QP's lock may be held. Nothing where nothing was opened. */
void packet_socket_send(uint32_t ifindex, const struct iovec *gather, unsigned gather_count);
/* The descriptor that helper_watch() was given is readable, or is another one by now. Helper thread. */
void packet_socket_receive(int fd);
void packet_socket_after_fork_in_child(void);

#endif
