#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: demo.sh SOFTHCA   A short tour: what devices there are, then two processes that talk to each other.
set -euo pipefail
softhca=${1:-build/softhca}
port=$((20000 + RANDOM % 20000))
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT

title()
{
    printf '\n\033[1m%s\033[0m\n' "$*"
}

show()
{
    printf '$ %s\n' "$*"
    "$@"
}

# perftest's server listens on TCP for its client; the client must not come first.
listening()
{
    for _ in $(seq 200); do
        [ -z "$(ss -Hltn "sport = :$1")" ] || return 0
        kill -0 "$server" 2>/dev/null || return 1
        read -rt 0.05 <> <(:) || true
    done
    return 1
}

pair()
{
    local log
    log=$(mktemp)
    port=$((port + 1))
    printf '$ %s run -- %s &\n' "$softhca" "$* -p $port"
    "$softhca" run -- "$@" -p "$port" >"$log" 2>&1 &
    server=$!
    listening "$port" || { cat "$log"; rm -f "$log"; echo "the server did not start"; exit 1; }
    show "$softhca" run -- "$@" -p "$port" 127.0.0.1
    wait "$server"
    server=
    rm -f "$log"
}

title "1. What this machine shows (ibv_devinfo, unmodified from Debian)"
show "$softhca" run -- ibv_devinfo

title "2. Bandwidth of RDMA WRITE between two processes (ib_write_bw)"
pair ib_write_bw -F -D 2

title "3. Latency of SEND between two processes (ib_send_lat)"
pair ib_send_lat -F -n 20000

title "Done."
echo "Any RDMA program runs this way: $softhca run -- PROGRAM [ARG…]; see also: $softhca doctor"
