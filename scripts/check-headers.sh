#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-headers.sh CLONE_OF_RDMA_CORE [RELEASE|RELEASE=REVISION …]   (default: 39 50, those of Ubuntu 22.04 and 24.04)
# The library compiles with the public headers of each release, and tests/abi finds its symbols and layouts as ever. For
# releases that no distribution which can be had here ships: nothing of rdma-core is compiled but its headers.
set -euo pipefail
clone=$(cd "${1:?usage: check-headers.sh CLONE_OF_RDMA_CORE [RELEASE|RELEASE=REVISION …]}" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- 39 50
work=$(mktemp -d /var/tmp/softhca-headers-XXXXXX)
trap 'rm -rf "$work"' EXIT

# $1: a glob in the clone, $2: the revision, $3: the folder to put them into
take()
{
    local path
    mkdir -p "$3"
    git -C "$clone" ls-tree --name-only "$2" "$(dirname "$1")/" | while read -r path; do
        # shellcheck disable=SC2053
        [[ $path != $1 ]] || git -C "$clone" show "$2:$path" >"$3/${path##*/}"
    done
}

# What meson asks for. $1: name, $2: version
describe()
{
    mkdir -p "$work/pkgconfig"
    printf 'Name: %s\nDescription: headers\nVersion: %s\nCflags: -isystem %s\nlibdir=%s\n' "$1" "$2" "$headers" "$work/none" \
        >"$work/pkgconfig/$1.pc"
}

failed=0
for wanted in "$@"; do
    release=${wanted%%=*}
    revision=${wanted#*=}
    [ "$revision" != "$release" ] || revision=v$release.0
    headers=$work/$release/include
    git -C "$clone" rev-parse -q --verify "$revision^{commit}" >/dev/null || {
        echo "not ok - rdma-core $release: $clone has no $revision"
        failed=1
        continue
    }
    take 'libibverbs/*.h' "$revision" "$headers/infiniband"
    take 'kernel-headers/rdma/ib_user_ioctl_verbs.h' "$revision" "$headers/infiniband"
    take 'librdmacm/*.h' "$revision" "$headers/rdma"
    take 'librdmacm/ib.h' "$revision" "$headers/infiniband"
    describe libibverbs "1.14.$release.0"
    describe librdmacm "1.3.$release.0"
    if PKG_CONFIG_PATH=$work/pkgconfig meson setup "$work/$release/build" -Dwerror=true -Dbench=false >"$work/log" 2>&1 &&
        meson test -C "$work/$release/build" --suite abi >>"$work/log" 2>&1; then
        echo "ok - rdma-core $release: $(grep -oE '^Ok: +[0-9]+' "$work/log" | grep -oE '[0-9]+') tests of tests/abi"
    else
        grep -E 'error|warning:|FAIL' "$work/log" | head -n40
        tail -n5 "$work/log"
        echo "not ok - rdma-core $release"
        failed=1
    fi
    rm -rf "${work:?}/$release"
done
exit $failed
