#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check.sh [WHAT…]   (deb, rpm, tarball, action, container, gitlab, newcomer, ubuntu; all by default)
# Each way to install SoftHCA, in fresh roots of Debian: installed, used as an ordinary user, and removed without a
# trace where that can be; ubuntu: what newcomer does, in Ubuntu. Needs root, debootstrap and a mirror
# (scripts/distro.sh); exit status 77 where one is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh
. scripts/distro.sh
[ $# -gt 0 ] || set -- deb rpm tarball action container gitlab newcomer ubuntu
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
newest=trixie

good()
{
    echo "ok - $*"
}

# What README.md tells a newcomer, as root in a fresh root. $1: release
newcomer()
{
    begin "$1" bare
    commands=$(sed -n '/^```sh$/,/^```$/p' README.md | sed '/^```/d')
    rm -rf "$tree"/build*
    try inside '' bash -exc "${commands//sudo /}"
    grep -q 'Done' "$work/out"
    good "$what: README.md's commands in a fresh $1, as root"
}

# Runs in the root that was begun. A failure is told with what was printed.
try()
{
    "$@" >"$work/out" 2>&1 || {
        tail -n40 "$work/out"
        echo "not ok - $what: $*"
        exit 1
    }
}

# Two processes talk, as an ordinary user and without a network. $1: the command softhca
use()
{
    try inside --net scripts/as-user.sh scripts/demo.sh "$1"
    grep -q '^ 2 .*20000' "$work/out" || grep -qE '^ *2 +20000' "$work/out" || {
        cat "$work/out"
        echo "not ok - $what: no latencies in what the demo says"
        exit 1
    }
    try inside --net scripts/as-user.sh "$1" --version
    grep -qx "softhca $version" "$work/out"
}

tarball()
{
    file=dist/softhca-$version-linux-x86_64.tar.gz
    [ -e "$file" ] || skip "$file is not there (make dist-binary)"
}

begin()
{
    distro_begin "$1"
    distro_with "$2" "${@:3}"
    distro_tree
    mkdir -p "$tree/dist"
    cp -t "$tree/dist" dist/*.tar.gz 2>/dev/null || true
}

for what in "$@"; do
    case $what in
    deb)
        begin $newest package build package
        try inside --net packaging/deb.sh
        begin $newest used demo
        try inside '' sh -c 'apt-get update && apt-get install -y --no-install-recommends pkg-config'
        inside --net sh -c 'dpkg -V libibverbs1; md5sum /usr/lib/*/libibverbs.so.1* /usr/lib/*/librdmacm.so.1*' >"$work/before" 2>/dev/null || true
        try inside --net sh -c 'dpkg -i dist/*.deb'
        use softhca
        try inside --net sh -c '[ "$(pkg-config --modversion softhca)" = "$0" ] && ls "$(pkg-config --variable=library_path softhca)/libibverbs.so.1" && ls "$(pkg-config --cflags-only-I softhca | sed "s/^-I//; s/ *$//")/softhca/softhca.h"' "$version"
        try inside --net dpkg --purge softhca libsofthca-dev libsofthca
        inside --net sh -c 'dpkg -V libibverbs1; md5sum /usr/lib/*/libibverbs.so.1* /usr/lib/*/librdmacm.so.1*' >"$work/after" 2>/dev/null || true
        try cmp "$work/before" "$work/after"
        [ -z "$(inside --net find / -xdev -name '*softhca*' ! -path '/softhca*' ! -path '/etc/*.d/softhca' ! -path '/run/*')" ]
        good "deb: built without errors of lintian, installed, used, purged"
        ;;
    rpm)
        begin $newest package build package
        try inside --net packaging/rpm.sh
        begin $newest used demo
        try inside '' sh -c 'apt-get update && apt-get install -y --no-install-recommends rpm'
        try inside --net sh -c 'rpm -i --nodeps dist/*.rpm && rpm -qa'
        use softhca
        try inside --net sh -c 'rpm -V --nodeps softhca softhca-libs softhca-devel && rpm -e softhca softhca-libs softhca-devel && ! command -v softhca'
        good "rpm: built, installed, used, removed"
        ;;
    tarball)
        tarball
        for release in bullseye $newest; do
            begin "$release" used demo
            # Somewhere else than where it was built for, and then moved again.
            try inside --net sh -c 'mkdir -p "/srv/a place" && tar -xzf dist/softhca-*-x86_64.tar.gz -C "/srv/a place" && mv "/srv/a place" /srv/elsewhere && mv /srv/elsewhere/* /srv/softhca'
            use /srv/softhca/bin/softhca
            good "tarball: unpacked, moved and used on $release"
        done
        ;;
    action)
        tarball
        begin $newest used demo
        python3 packaging/steps.py packaging/github/action.yml "tarball=/softhca/${file/x86_64/ARCH}" \
            "sha256=$(sha256sum "$file" | cut -d' ' -f1)" >"$tree/build-steps.sh"
        # shellcheck disable=SC2016
        echo 'softhca run -- ibv_devinfo; [ -z "${LD_PRELOAD-}" ]; grep -q ^library-path= "$GITHUB_OUTPUT"' >>"$tree/build-steps.sh"
        try inside --net bash build-steps.sh
        grep -q 'hca_id:.*softhca0' "$work/out"
        python3 packaging/steps.py packaging/github/action.yml "tarball=/softhca/$file" export=true >"$tree/build-steps.sh"
        echo 'ibv_devinfo' >>"$tree/build-steps.sh"
        try inside --net bash build-steps.sh
        grep -q 'hca_id:.*softhca0' "$work/out"
        python3 packaging/steps.py packaging/github/action.yml "tarball=/softhca/$file" \
            "sha256=$(printf '%064d' 0)" >"$tree/build-steps.sh"
        if inside --net bash build-steps.sh >"$work/out" 2>&1; then
            echo "not ok - action: a wrong sum is taken"
            exit 1
        fi
        good "action: softhca on PATH, no variables unless asked for, a wrong sum refused"
        ;;
    container)
        tarball
        begin $newest bare
        python3 packaging/steps.py packaging/Containerfile "$tree/dist" | sed "s,$tree,/softhca,g" >"$tree/build-steps.sh"
        try inside '' bash build-steps.sh
        grep -q 'hca_id:.*softhca0' "$work/out"
        good "container: the instructions of Containerfile end in a device"
        ;;
    gitlab)
        tarball
        begin $newest bare
        python3 packaging/steps.py packaging/gitlab-ci.yml "SOFTHCA_TARBALL=/softhca/$file" >"$tree/build-steps.sh"
        try inside '' bash build-steps.sh
        grep -q 'hca_id:.*softhca0' "$work/out"
        good "gitlab: the job's script ends in a device"
        ;;
    newcomer)
        newcomer $newest
        begin $newest bare
        rm -rf "$tree"/build*
        # A machine whose user has sudo, and a directory of his own.
        try inside '' bash -exc "apt-get update; apt-get install -y --no-install-recommends sudo
            useradd --create-home newcomer; echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/newcomer
            cp -r . ~newcomer/softhca; chown -R newcomer: ~newcomer; cd ~newcomer/softhca
            setpriv --reuid newcomer --regid newcomer --init-groups env HOME=/home/newcomer bash -exc '$commands'"
        grep -q 'Done' "$work/out"
        good "newcomer: README.md's commands in a fresh $newest, as a user with sudo"
        ;;
    ubuntu)
        newcomer jammy
        newcomer noble
        ;;
    *) echo "check.sh: nothing is called '$what'" >&2; exit 2 ;;
    esac
    rm -rf "$work"
done
