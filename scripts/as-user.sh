#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: as-user.sh [-2] COMMAND [ARG…]
# Runs COMMAND as an ordinary user: no privileges, the default RLIMIT_MEMLOCK, a HOME and XDG_RUNTIME_DIR of its own.
# -2: as a second ordinary user, for tests between users. When the caller is not root, COMMAND runs as the caller
# (then -2 fails with 77: there is no second user).
set -euo pipefail

user=65534
if [ "${1-}" = -2 ]; then
    user=65533
    shift
fi
if [ "$(id -u)" -ne 0 ]; then
    if [ "$user" -ne 65534 ]; then
        echo "a second user needs root"
        exit 77
    fi
    exec "$@"
fi

# Not in /tmp, where somebody else could have put a link of this name.
home=/run/softhca-test-$user
mkdir -p "$home"
chown "$user:$user" "$home"
chmod 700 "$home"
export HOME=$home XDG_RUNTIME_DIR=$home TMPDIR=/tmp USER=softhca$user LOGNAME=softhca$user
# 8 MiB is what an ordinary login gets from a current kernel.
ulimit -l 8192 2>/dev/null || true
exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all -- "$@"
