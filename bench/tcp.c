/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* TCP over loopback: what a program without RDMA uses between two processes. Messages of a fixed size, one
 * send() each. */
#include "common.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 20000 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void send_all(int fd, const char *p, size_t left)
{
    while (left) {
        ssize_t n = send(fd, p, left, MSG_NOSIGNAL);

        if (n <= 0)
            die("send");
        p += n;
        left -= (size_t)n;
    }
}

static void receive_all(int fd, char *p, size_t left)
{
    while (left) {
        ssize_t n = recv(fd, p, left, 0);

        if (n <= 0)
            die("recv");
        p += n;
        left -= (size_t)n;
    }
}

static size_t rounds(size_t size)
{
    size_t n = ((size_t)64 << 20) / size;

    return n > SAMPLES ? SAMPLES : n < 50 ? 50 : n;
}

static size_t messages(size_t size)
{
    size_t n = ((size_t)1 << 30) / size;

    return n > 400000 ? 400000 : n < 50 ? 50 : n;
}

static void listen_on_loopback(int *ret_listener, struct sockaddr_in *ret_to)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1) ||
        getsockname(fd, (struct sockaddr *)&at, &length))
        die("listen");
    *ret_listener = fd;
    *ret_to = at;
}

static void no_delay(int fd)
{
    int one = 1;

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        die("TCP_NODELAY");
}

static void serve(int fd, char *buffer, size_t size)
{
    for (size_t n = rounds(size); n; n--) {
        receive_all(fd, buffer, size);
        send_all(fd, buffer, size);
    }
    for (size_t n = messages(size); n; n--)
        receive_all(fd, buffer, size);
    send_all(fd, buffer, 1);
}

static void measure(int fd, char *buffer, size_t size)
{
    static uint64_t took[SAMPLES];
    size_t n = rounds(size), m = messages(size);
    uint64_t began;
    double seconds;

    for (size_t i = 0; i < n; i++) {
        began = now_ns();
        send_all(fd, buffer, size);
        receive_all(fd, buffer, size);
        took[i] = now_ns() - began;
    }
    began = now_ns();
    for (size_t i = 0; i < m; i++)
        send_all(fd, buffer, size);
    receive_all(fd, buffer, 1);
    seconds = (double)(now_ns() - began) / 1e9;
    printf("size %zu latency_us %.3f gbps %.3f msgs %.0f\n", size, (double)median(took, n) / 2000.0,
           (double)m * (double)size / seconds / 1e9, (double)m / seconds);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct sockaddr_in to;
    size_t largest = 1;
    int listener, status;
    char *buffer;
    pid_t child;

    if (argc < 4) {
        fprintf(stderr, "usage: %s CPU CPU SIZE...\n", argv[0]);
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 0);

        if (size == 0)
            return 2;
        largest = size > largest ? size : largest;
    }
    buffer = calloc(1, largest);
    if (!buffer)
        return 1;
    listen_on_loopback(&listener, &to);
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        pin(atoi(argv[2]));
        if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
            die("connect");
        no_delay(fd);
        for (int i = 3; i < argc; i++)
            serve(fd, buffer, strtoull(argv[i], NULL, 0));
        _exit(0);
    }
    pin(atoi(argv[1]));

    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        die("accept");
    no_delay(fd);
    for (int i = 3; i < argc; i++)
        measure(fd, buffer, strtoull(argv[i], NULL, 0));
    if (waitpid(child, &status, 0) != child || status)
        return 1;
    free(buffer);
    return 0;
}
