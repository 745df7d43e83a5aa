/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* TCP over loopback: how fast one process opens connections to another one, which accepts them, and closes
 * them. */
#include "common.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void serve(int listener, int count, int *fds)
{
    char byte = 0;

    for (int i = 0; i < count; i++) {
        fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fds[i] < 0)
            die("accept");
    }
    if (send(fds[0], &byte, 1, MSG_NOSIGNAL) != 1)
        die("send");
    for (int i = 0; i < count; i++) {
        if (recv(fds[i], &byte, 1, 0) != 0)
            die("recv");
        close(fds[i]);
    }
}

static void run_client(const struct sockaddr_in *to, int count, int *fds)
{
    uint64_t began = now_ns(), connected;
    char byte;

    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fds[i] < 0 || connect(fds[i], (const struct sockaddr *)to, sizeof(*to)))
            die("connect");
    }
    if (recv(fds[0], &byte, 1, 0) != 1) /* all are accepted */
        die("recv");
    connected = now_ns();
    for (int i = 0; i < count; i++)
        close(fds[i]);
    printf("connect_us %.2f close_us %.2f\n", (double)(connected - began) / 1000.0 / count,
           (double)(now_ns() - connected) / 1000.0 / count);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    struct rlimit files;
    int count = argc == 4 ? atoi(argv[3]) : 0, listener, status, *fds;
    pid_t child;

    if (count < 1) {
        fprintf(stderr, "usage: %s CPU CPU CONNECTIONS\n", argv[0]);
        return 2;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    fds = calloc((size_t)count, sizeof(*fds));
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!fds || listener < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, count) || getsockname(listener, (struct sockaddr *)&address, &length))
        die("listen");
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        pin(atoi(argv[2]));
        serve(listener, count, fds);
        _exit(0);
    }
    pin(atoi(argv[1]));
    run_client(&address, count, fds);
    if (waitpid(child, &status, 0) != child || status)
        return 1;
    free(fds);
    return 0;
}
