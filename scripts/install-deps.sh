#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: install-deps.sh GROUP…   (build, demo, check, distro, cross, emulated, ubuntu, screen, package, container, roots, long, bench, guest)
# Installs with apt what is missing of the named groups, through sudo when not root. Touches nothing, and needs no
# network, when everything is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=(gcc libc6-dev make meson ninja-build pkg-config python3 libibverbs-dev librdmacm-dev libdeflate-dev)
demo=(ibverbs-utils perftest iproute2)
check=("${demo[@]}" libcmocka-dev clang clang-format clang-tidy libclang-rt-14-dev cppcheck binutils util-linux procps
       python3-pyverbs libfabric-bin rdma-core ibverbs-providers rdmacm-utils qperf fio ucx-utils valgrind strace
       iperf3 curl socat libncurses-dev tmux libjemalloc2 libtcmalloc-minimal4 qemu-system-x86 busybox-static cpio kmod tshark crun gdb sudo)
# What check-distro.sh needs in the other release: names that every release has.
distro=("${demo[@]}" clang libcmocka-dev binutils util-linux procps python3-pyverbs rdma-core ibverbs-providers
        rdmacm-utils qperf fio ucx-utils libfabric-bin openmpi-bin libopenmpi-dev mpich libmpich-dev iperf3 curl socat)
# For another processor (packaging/dist-binary.sh): the libraries are that processor's, which apt has to be told of.
cross=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross libibverbs-dev:arm64 librdmacm-dev:arm64 libdeflate-dev:arm64
       libncurses-dev:arm64)
# That the tests of it can be built and run as well.
emulated=(libcmocka-dev:arm64 qemu-user binutils-aarch64-linux-gnu procps iproute2)
# What makes roots of Ubuntu (scripts/distro.sh): Debian 12 has neither the keys nor a script for 24.04.
ubuntu=(debootstrap ubuntu-archive-keyring)
# What softhca top needs to be built with a terminal interface, which whoever installs it expects.
screen=(libncurses-dev)
package=("${screen[@]}" build-essential debhelper dpkg-dev lintian rpm)
# What builds an image and runs it.
container=(podman crun)
# What makes and looks into roots of other distributions, whose own packages are installed there.
roots=(debootstrap binutils util-linux iproute2 python3 python3-yaml)
long=("${roots[@]}" spin gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user flex bison openmpi-bin libopenmpi-dev mpich
      libmpich-dev tgt libiscsi-bin libiscsi-dev g++ libgloo-dev librpma-dev ceph-mon ceph-osd ceph-common
      qemu-system-arm qemu-system-mips qemu-system-misc qemu-system-ppc qemu-system-sparc dapl2-utils)
# Left out where the release has none: Debian 13 is without uDAPL.
not_everywhere=(dapl2-utils)
bench=("${demo[@]}" gnuplot-nox ucx-utils util-linux rdmacm-utils crun)
guest=("${demo[@]}" qemu-system-x86 busybox-static cpio kmod procps util-linux ibverbs-providers)

wanted=()
for group in "$@"; do
    case $group in
    build) wanted+=("${build[@]}") ;;
    demo) wanted+=("${demo[@]}") ;;
    check) wanted+=("${check[@]}") ;;
    distro) wanted+=("${distro[@]}") ;;
    cross) wanted+=("${cross[@]}") ;;
    emulated) wanted+=("${emulated[@]}") ;;
    ubuntu) wanted+=("${ubuntu[@]}") ;;
    screen) wanted+=("${screen[@]}") ;;
    package) wanted+=("${package[@]}") ;;
    container) wanted+=("${container[@]}") ;;
    roots) wanted+=("${roots[@]}") ;;
    long) wanted+=("${long[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
    guest) wanted+=("${guest[@]}") ;;
    *) echo "install-deps.sh: no group '$group'" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "install-deps.sh: not a Debian system; these packages (or their like) are needed: ${wanted[*]}" >&2
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi

if [[ " $* " == *" cross "* ]] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
    "${as_root[@]}" dpkg --add-architecture arm64
fi

missing=()
for package in $(printf '%s\n' "${wanted[@]}" | sort -u); do
    # ${db:Status-Status} is a field of dpkg-query, not of the shell.
    # shellcheck disable=SC2016
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -q
    for package in "${not_everywhere[@]}"; do
        apt-cache show "$package" >/dev/null 2>&1 || missing=("${missing[@]/#$package/}")
    done
    # Of what was left out there is an empty name.
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sed '/^$/d')
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# Container images of Debian leave out /usr/share/doc, where python3-pyverbs ships rdma-core's tests.
if [[ " $* " == *" check "* && ! -d /usr/share/doc/rdma-core/tests && ! -d build-deps/rdma-core-tests ]]; then
    echo "fetching rdma-core's tests from python3-pyverbs"
    mkdir -p build-deps
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    (cd "$work" && apt-get download -q python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb unpacked)
    mv "$work/unpacked/usr/share/doc/rdma-core/tests" build-deps/rdma-core-tests
fi

# containers-common's seccomp profile alone, for containers of crun: its package wants a network for containers, too.
if [[ " $* " == *" check "* || " $* " == *" bench "* ]] &&
       [[ ! -e /usr/share/containers/seccomp.json && ! -e build-deps/containers/seccomp.json ]]; then
    echo "fetching the seccomp profile of golang-github-containers-common"
    mkdir -p build-deps/containers
    profile=$(mktemp -d)
    chmod 755 "$profile"
    if (cd "$profile" && apt-get download -q golang-github-containers-common && dpkg-deb -x ./*.deb unpacked); then
        mv "$profile/unpacked/usr/share/containers/seccomp.json" build-deps/containers/
    else
        echo "install-deps.sh: without it, tests of containers are skipped" >&2
    fi
    rm -rf "$profile"
fi
