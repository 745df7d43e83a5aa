/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Frames to and from the network interface of a device (packet_socket.c). */
#ifndef ENGINE_HOST_PACKET_SOCKET_H
#define ENGINE_HOST_PACKET_SOCKET_H

#include <stdint.h>
#include <sys/uio.h>

struct device;

/* A RAW_PACKET QP of the device is going to send: opens the socket to send by. The log says once why there is none. No
 * lock held. */
void packet_socket_open(const struct device *device);
/* A flow rule of the device was added or removed: opens or closes the socket to receive by. No lock held. */
void packet_socket_listen(const struct device *device);
/* Sends a frame; does nothing if the interface has no socket. Any thread; a QP's lock may be held. */
void packet_socket_send(uint32_t ifindex, const struct iovec *gather, unsigned gather_count);
/* The descriptor that was passed to helper_watch() is readable; it may have been closed, and its number used again.
 * Helper thread. */
void packet_socket_receive(int fd);
/* The packet socket is not to receive what this host sends. 0 or -errno. For tests, too. */
int packet_socket_ignore_outgoing(int fd);
void packet_socket_after_fork_in_child(void);

#endif
