#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-kernel.sh [-u] [TEST…]   (default: the suites of make quick)
#        check-kernel.sh [-u] -- COMMAND [ARG…]   (instead of tests, such as build/softhca doctor)
# The tree built in a fresh root of Debian 11, and its quick tests there on that release's kernel, 5.10, in a guest of QEMU
# without KVM; what that kernel cannot do is skipped, by the names in tests/portability/kernel-cannot.txt. Prints TAP.
# -u: as an ordinary user with default limits.
# SOFTHCA_KERNEL: a folder with another kernel, as its packages unpack: boot/vmlinuz-* and lib/modules.
# Needs root, debootstrap, a mirror, qemu-system-x86 and busybox-static; exit status 77 and the reason where one is missing.
set -euo pipefail
LIMIT=7200
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh disable=SC2154
. scripts/distro.sh
as_user=
if [ "${1-}" = -u ]; then
    as_user=scripts/as-user.sh
    shift
fi
if [ "${1-}" = -- ]; then
    shift
    command=("$@")
else
    command=(tests/portability/emulated.py --cannot kernel-cannot.txt --built build "$@")
fi
for tool in qemu-system-x86_64 busybox cpio modprobe; do
    PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || skip "$tool is not here"
done
distro_begin bullseye
distro_with full build distro
distro_tree kernel
[ -e "$tree/build/build.ninja" ] || inside --net meson setup build -Dwerror=true -Dbench=false >"$work/log" 2>&1 || {
    tail -n20 "$work/log"
    exit 1
}
inside --net ninja -k 0 -C build >"$work/log" 2>&1 || {
    grep -E 'error|warning:' "$work/log" | head -n40
    tail -n5 "$work/log"
    exit 1
}

# The package is unpacked, never installed.
kernel=${SOFTHCA_KERNEL:-$roots/bullseye.kernel}
if [ -z "${SOFTHCA_KERNEL-}" ] && [ ! -e "$kernel/ready" ]; then
    rm -rf "$kernel" "$roots"/bullseye.archives/linux-image-*.deb
    mkdir -p "$kernel"
    # shellcheck disable=SC2016
    inside '' sh -c 'cd /var/cache/apt/archives && apt-get update -q &&
        apt-get download -q $(apt-cache depends linux-image-amd64 | sed -n "s/.*Depends: //p" | head -n1)' >"$work/log" 2>&1 || {
        tail -n5 "$work/log"
        skip "no kernel from the mirror"
    }
    dpkg-deb -x "$roots"/bullseye.archives/linux-image-*.deb "$kernel"
    touch "$kernel/ready"
fi
export PATH=$PATH:/usr/sbin:/sbin
version=$(ls "$kernel/lib/modules")

guest=$work/initrd
mkdir -p "$guest"/{bin,modules,proc,sys,dev,root,tree,share,rw,new}
cp "$(command -v busybox)" "$guest/bin/"
[ -e "$kernel/lib/modules/$version/modules.dep" ] || depmod -b "$kernel" "$version"
for module in virtio_pci 9pnet_virtio 9p overlay veth virtio_rng unix_diag; do
    # Nothing of one that is part of the kernel.
    modprobe -d "$kernel" -S "$version" --show-depends $module 2>/dev/null | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$guest/modules/"
    echo "${file##*/}"
done >"$guest/order"
cat >"$guest/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for m in $($b cat /order); do $b insmod /modules/$m; done
plan9() { $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,$3 $1 $2; }
plan9 root /root ro,cache=loose && plan9 tree /tree ro,cache=loose && plan9 share /share rw,cache=none || $b poweroff -f
# What is written stays in the guest.
$b mount -t tmpfs rw /rw
$b mkdir -p /rw/root /rw/root.work /rw/tree /rw/tree.work
$b mount -t overlay -o lowerdir=/root,upperdir=/rw/root,workdir=/rw/root.work over /new
$b mkdir -p /new/softhca /new/share
$b mount -t overlay -o lowerdir=/tree,upperdir=/rw/tree,workdir=/rw/tree.work over /new/softhca
$b mount --move /share /new/share
for m in proc sys dev; do $b mount --move /$m /new/$m; done
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs -o mode=1777 tmp /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs -o mode=1777 tmp /new/tmp
$b mount -t tmpfs -o mode=755 tmp /new/run
exec $b switch_root /new /bin/bash /share/run
INIT
chmod +x "$guest/init"
(cd "$guest" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"

mkdir -p "$work/share"
{
    cat <<'RUN'
exec >/share/tap 2>&1 </dev/null
export HOME=/root TERM=dumb LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# As a service manager leaves it.
mount --make-rshared /
ulimit -n 1024
ulimit -Hn 524288
hostname guest
[ -e /etc/hosts ] || printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 guest\n' >/etc/hosts
ip link set lo up
ip link add host0 type veth peer name host1
ip addr add 192.0.2.2/24 dev host0
ip link set host0 up
ip link set host1 up
cd /softhca
echo "# Linux $(uname -r)"
RUN
    [ -z "$as_user" ] || echo 'chown -R 65534:65534 build/meson-logs build/meson-private'
    printf '%q ' $as_user "${command[@]}"
    cat <<'RUN'

echo $? >/share/status
sync
echo o >/proc/sysrq-trigger
exec sleep infinity
RUN
} >"$work/share/run"
touch "$work/share/tap"
# QEMU repeats string instructions one element at a time, bytes with erms: the kernel is to clear and copy pages by
# loops (clearcpuid: rep_good). Without the others it walks fewer page tables and switches less.
timeout -k 5 "$LIMIT" qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm,-la57,-smap,-smep,-umip,-pku -smp 2 -m 4096 \
    -display none -vga none -serial stdio -monitor none -no-reboot -nic none -device virtio-rng-pci \
    -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd.gz" \
    -append 'console=ttyS0 loglevel=4 panic=-1 mitigations=off clearcpuid=112' \
    -virtfs "local,path=$lower,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
    -virtfs "local,path=$tree,mount_tag=tree,security_model=none,readonly=on,multidevs=remap" \
    -virtfs "local,path=$work/share,mount_tag=share,security_model=none,multidevs=remap" </dev/null >"$work/console" 2>&1 &
machine=$!
trap 'kill $machine 2>/dev/null || true; rm -rf "${works[@]}"' EXIT
trap 'exit 143' INT TERM
# In the background, so that a signal to this script is heard.
tail -n +1 -f --pid $machine "$work/share/tap" &
wait $! || true
[ -s "$work/share/status" ] || {
    tail -n20 "$work/console" | sed 's/^/# console: /'
    echo "the guest stopped before its tests ended"
    exit 1
}
exit "$(cat "$work/share/status")"
