# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Fresh roots of other distributions, for the scripts that source this file: made once by debootstrap, then read only
# below an overlay, so that whatever a check does to its root ends with the check.
#
# SOFTHCA_ROOTS   a folder where roots, packages and build directories stay, so that a repetition is cheap; without it
#                 they end with the check. It belongs to root, and so does what is in it.

works=()

skip()
{
    echo "$*"
    exit 77
}

# The mirror that apt knows for Debian. Others have to be named, or are asked at their well-known address.
distro_mirror()
{
    case $1 in
    jammy | noble) echo "${SOFTHCA_UBUNTU_MIRROR-http://archive.ubuntu.com/ubuntu}" ;;
    *)
        # shellcheck disable=SC2016
        apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
        ;;
    esac
}

# Sets work (ends with the script), roots, tree. $1: release
distro_begin()
{
    release=$1
    [ "$(id -u)" -eq 0 ] || skip "a root of $release needs root"
    command -v debootstrap >/dev/null || skip "debootstrap is not here"
    work=$(mktemp -d /var/tmp/softhca-distro-XXXXXX)
    works+=("$work")
    trap 'rm -rf "${works[@]}"' EXIT
    chmod 755 "$work"
    roots=${SOFTHCA_ROOTS:-$work}
    mkdir -p "$roots"
    chmod 755 "$roots"
    # One at a time makes a root; who comes later finds it.
    exec 9>"$roots/.lock.$release"
    flock 9
    [ -e "$roots/$release.bare/ready" ] || distro_bootstrap
    flock -u 9
    distro_use "$roots/$release.bare"
}

# Runs a command in Debian 13, which has a debootstrap for Ubuntu and its keys. $1: the folder that is /softhca there
in_trixie()
(
    works=()
    distro_begin trixie
    distro_with ubuntu ubuntu
    tree=$1
    shift
    inside '' "$@"
)

# What cannot be had is skipped; what is not signed by whom it should be is a failure.
distro_bootstrap()
{
    local mirror why status=0 to="$roots/$release.bare" options=(--variant=minbase --force-check-gpg)
    mirror=$(distro_mirror "$release")
    [ -n "$mirror" ] || skip "$release: no mirror is known to apt or named"
    rm -rf "$to"
    mkdir -p "$to"
    case $release in
    jammy | noble)
        in_trixie "$to" true || skip "$release: no root, for it is made in one of Debian 13, which has the keys of Ubuntu"
        in_trixie "$to" debootstrap "${options[@]}" "$release" root "$mirror" >"$work/log" 2>&1 || status=$?
        ;;
    *)
        [ -e "${DEBOOTSTRAP_DIR:-/usr/share/debootstrap}/scripts/$release" ] ||
            skip "$release: no root, for this machine's debootstrap has no script for it"
        debootstrap "${options[@]}" "$release" "$to/root" "$mirror" >"$work/log" 2>&1 || status=$?
        ;;
    esac
    if [ $status -ne 0 ]; then
        tail -n5 "$work/log"
        rm -rf "$to"
        why=$(sed -n 's/^E: //p' "$work/log" | tail -n1)
        case $why in
        *'elease sig'*) echo "$release: no root from $mirror: $why"; exit 1 ;;
        esac
        skip "$release: no root from $mirror: ${why:-debootstrap failed}"
    fi
    # A mirror may be a snapshot; the root is thrown away, so nothing need reach the disk.
    echo 'Acquire::Check-Valid-Until "false";' >"$to/root/etc/apt/apt.conf.d/softhca"
    echo force-unsafe-io >"$to/root/etc/dpkg/dpkg.cfg.d/softhca"
    if grep -q '^ID=ubuntu' "$to/root/etc/os-release"; then
        echo "deb $mirror $release main universe" >"$to/root/etc/apt/sources.list"
    fi
    touch "$to/ready"
}

# The root that `inside` shows from now on. $1: the folder that holds root/
distro_use()
{
    lower=$1/root
    rm -rf "$work/upper" "$work/overlay" "$work/root"
    mkdir -p "$work/upper" "$work/overlay" "$work/root" "$roots/$release.archives"
    chmod 755 "$work/upper"
}

# With packages on top: those of groups that install-deps.sh knows. $1: a name for them, then the groups
distro_with()
{
    local to="$roots/$release.$1"
    shift
    # With none: the root as debootstrap leaves it.
    [ $# -gt 0 ] || return 0
    flock 9
    if ! cmp -s scripts/install-deps.sh "$to/ready"; then
        mkdir -p "$to"
        [ -e "$to/root" ] || {
            rm -rf "$to/new"
            cp -a --reflink=auto "$roots/$release.bare/root" "$to/new"
            mv "$to/new" "$to/root"
        }
        mkdir -p "$to/root/softhca" "$work/scripts/scripts"
        cp scripts/install-deps.sh "$work/scripts/scripts/"
        (
            lower='' tree=$work/scripts root=$to/root
            inside '' scripts/install-deps.sh "$@" >"$work/log" 2>&1
        ) || {
            tail -n20 "$work/log"
            exit 1
        }
        cp scripts/install-deps.sh "$to/ready"
    fi
    flock -u 9
    distro_use "$to"
}

# The tree, without what was made of it on this machine; what the last check made stays where SOFTHCA_ROOTS does.
# $1: a name, where two checks of one release may run at a time
distro_tree()
{
    tree=$roots/$release.${1:-}tree
    rm -rf "$tree.new"
    mkdir -p "$tree.new"
    # Also while somebody edits a file of it.
    { tar --create --warning=no-file-changed --exclude-vcs --exclude='./build*' --exclude=./dist . || [ $? -eq 1 ]; } |
        tar --extract --no-same-owner --directory "$tree.new"
    if [ -d "$tree" ]; then
        # What was edited while the last copy was being compiled is older than the object made of that copy.
        (cd "$tree.new" && find . -type f -exec sh -c 'for i; do cmp -s "$i" "$0/$i" || touch "$i"; done' "$tree" {} +)
        find "$tree" -maxdepth 1 \( -name 'build*' -o -name dist \) -exec mv -t "$tree.new" {} +
        rm -rf "$tree"
    fi
    mv "$tree.new" "$tree"
}

# Its mounts and processes end with it. $1: --net for a network of its own, with nothing but lo and an interface that
# leads nowhere. Not by chroot, in which no user may have a user namespace.
inside()
{
    local network=$1
    shift
    # shellcheck disable=SC2016,SC2086
    network=$network unshare --mount --pid --fork --kill-child $network bash -c '
        set -e
        root=$0 lower=$1 upper=$2 overlay=$3 tree=$4 archives=$5
        shift 5
        if [ "$network" = --net ]; then
            ip link set lo up
            ip link add host0 type veth peer name host1
            ip addr add 192.0.2.2/24 dev host0
            ip link set host0 up
            ip link set host1 up
        fi
        if [ -n "$lower" ]; then
            mount -t overlay softhca -o "lowerdir=$lower,upperdir=$upper,workdir=$overlay" "$root"
        else
            mount --bind "$root" "$root"
        fi
        cd "$root"
        # As an installer leaves it, but not debootstrap: libfabric looks for localhost.
        [ -e etc/hosts ] || printf "127.0.0.1 localhost\n::1 localhost\n" >etc/hosts
        mkdir -p softhca
        [ -z "$tree" ] || mount --bind "$tree" softhca
        mount --bind "$archives" var/cache/apt/archives
        mount -t proc proc proc
        mount -t sysfs sysfs sys
        mount --rbind /dev dev
        mount -t tmpfs -o mode=1777 tmp tmp
        pivot_root . mnt
        umount -l /mnt
        cd /softhca
        exec env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"' \
        "${root:-$work/root}" "${lower-}" "$work/upper" "$work/overlay" "${tree-}" "$roots/$release.archives" "$@" </dev/null
}
