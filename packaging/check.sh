#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check.sh [WHAT…]   (deb, rpm, tarball, arm64, action, container, gitlab, newcomer, ubuntu; all by default)
# Each way to install SoftHCA, in fresh roots of Debian: installed, used as an ordinary user, and removed without a
# trace where that can be; arm64: that tarball, under QEMU's user emulation; ubuntu: what action and newcomer do, in
# Ubuntu. What each printed is in build-packages/. Needs root,
# debootstrap and a mirror (scripts/distro.sh); exit status 77 where one is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh
. scripts/distro.sh
[ $# -gt 0 ] || set -- deb rpm tarball arm64 action container gitlab newcomer ubuntu
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
newest=trixie
mkdir -p build-packages

good()
{
    echo "ok - $*"
}

not_good()
{
    tail -n40 "$work/out"
    echo "not ok - $what: $*"
    exit 1
}

# Runs in the root that was begun. A failure is told with what was printed.
try()
{
    local status=0
    "$@" >"$work/out" 2>&1 || status=$?
    { printf '\n## %s\n' "$*"; cat "$work/out"; } >>"build-packages/$what.log"
    [ $status -eq 0 ] || not_good "exit status $status of: $*"
}

# What was run last has to have printed a line that matches.
says()
{
    grep -qE -e "$1" "$work/out" || not_good "no line matches '$1'"
}

# From the distribution, into the root that was begun.
packages()
{
    try inside '' apt-get update
    try inside '' apt-get install -y --no-install-recommends "$@"
}

# Two processes talk, as an ordinary user and without a network. $1: the command softhca
use()
{
    try inside --net scripts/as-user.sh scripts/demo.sh "$1"
    says '^ *2 +20000'
    try inside --net scripts/as-user.sh "$1" --version
    says "^softhca $version\$"
    try inside --net scripts/as-user.sh "$1" doctor
    says '^ok +softhca0'
    # At a terminal of its own, where a key ends it.
    try inside --net scripts/as-user.sh env TERM=xterm sh -c "echo q | timeout 60 script -qec '$1 top' /dev/null"
}

# dist/ by HTTP until this script ends, and below the path that releases have at GitHub. Sets url.
serve()
{
    local line
    local served=build-packages/web/softhca/softhca/releases/download
    [ -z "${url-}" ] || return 0
    mkdir -p "$served"
    ln -sfn "$PWD/dist" "$served/v$version"
    exec {server}< <(exec setpriv --pdeathsig TERM python3 -u -m http.server --bind 127.0.0.1 \
        --directory build-packages/web 0 2>/dev/null)
    read -r line <&"$server"
    # "Serving HTTP on 127.0.0.1 port NUMBER (..."
    line=${line#* port }
    url=http://127.0.0.1:${line%% *}
}

# Sets file. $1: architecture, x86_64 by default
tarball()
{
    file=dist/softhca-$version-linux-${1:-x86_64}.tar.gz
    [ -e "$file" ] || skip "$file is not there (make dist-binary)"
}

# What README.md tells a newcomer, in a fresh root. $1: release
newcomer()
{
    local commands
    # shellcheck disable=SC2016
    commands=$(sed -n '/^```sh$/,/^```$/p' README.md | sed '/^```/d')
    begin "$1" bare
    rm -rf "$tree"/build*
    try inside '' bash -exc "${commands//sudo /}"
    says 'Done'
    good "$what: README.md's commands in a fresh $1, as root"

    # A user who has sudo and a directory of his own, as his login makes his environment: no directory of root's in PATH.
    begin "$1" bare
    rm -rf "$tree"/build*
    cat >"$tree/build-login.sh" <<END
set -ex
apt-get update
apt-get install -y --no-install-recommends sudo
useradd --create-home --shell /bin/bash newcomer
echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/newcomer
printf '%s\n' 'set -ex' 'cd softhca' '[ "\$(id -u)" -ne 0 ]' $(printf '%q ' "$commands") >/tmp/commands
mkdir ~newcomer/softhca
tar --create --exclude='./build*' --exclude=./dist . | tar --extract --directory ~newcomer/softhca
chown -R newcomer: ~newcomer
exec runuser --login newcomer --command 'bash /tmp/commands'
END
    try inside '' bash build-login.sh
    says 'Done'
    good "$what: README.md's commands in a fresh $1, as a user with sudo"
}

# As GitHub's runner takes them: by an ordinary user. The arguments are those of steps.py, and its input is a
# later step.
steps_of_action()
{
    python3 packaging/steps.py packaging/github/action.yml "$@" >"$tree/build-steps.sh"
    cat >>"$tree/build-steps.sh"
    try inside '' scripts/as-user.sh bash build-steps.sh
}

# $1: release
action()
{
    tarball
    serve
    begin "$1" used demo
    packages curl ca-certificates
    # shellcheck disable=SC2016
    {
        steps_of_action "tarball=/softhca/${file/x86_64/ARCH}" "sha256=$(sha256sum "$file" | cut -d' ' -f1)" <<<'
            softhca run -- ibv_devinfo
            [ -z "${LD_PRELOAD-}" ]
            LD_LIBRARY_PATH=$(sed -n s/^library-path=//p "$GITHUB_OUTPUT") ibv_devices'
        says '^hca_id:.*softhca0'
        says '^ +softhca0'
        steps_of_action "github.server_url=$url" <<<'softhca run -- ibv_devinfo'
        says '^hca_id:.*softhca0'
        steps_of_action "tarball=/softhca/$file" export=true <<<'
            ibv_devinfo
            ls /sys/class/infiniband
            # gcc'\''s AddressSanitizer ends a program before which something is preloaded, unless told not to.
            [[ ,$ASAN_OPTIONS, = *[,:]verify_asan_link_order=0[,:]* ]]'
        says '^hca_id:.*softhca0'
        says '^softhca0$'
    }
    python3 packaging/steps.py packaging/github/action.yml "tarball=/softhca/$file" \
        "sha256=$(printf '%064d' 0)" >"$tree/build-steps.sh"
    if inside --net bash build-steps.sh >"$work/out" 2>&1; then
        not_good "a wrong sum is taken"
    fi
    says 'did NOT match'
    good "$what: on $1, by path and from a release: softhca on PATH, no variables unless asked for, a wrong sum refused"
}

begin()
{
    distro_begin "$1"
    distro_with "$2" "${@:3}"
    # check-distros may have its own copy in use.
    distro_tree package
    mkdir -p "$tree/dist"
    cp -t "$tree/dist" dist/*.tar.gz 2>/dev/null || true
}

for what in "$@"; do
    : >"build-packages/$what.log"
    case $what in
    deb)
        begin $newest package build package
        try inside --net packaging/deb.sh
        begin $newest used demo
        packages pkg-config
        inside --net sh -c 'dpkg -V libibverbs1; md5sum /usr/lib/*/libibverbs.so.1* /usr/lib/*/librdmacm.so.1*' >"$work/before" 2>/dev/null || true
        try inside '' sh -c 'apt-get install -y ./dist/libsofthca_*.deb ./dist/softhca_*.deb ./dist/libsofthca-dev_*.deb'
        # They ask for libc alone.
        # shellcheck disable=SC2016
        try inside --net dpkg-query -W -f '${Depends}\n' libsofthca
        says '^libc6 \([^)]*\)$'
        use softhca
        # shellcheck disable=SC2016
        try inside --net sh -c '[ "$(pkg-config --modversion softhca)" = "$0" ] && ls "$(pkg-config --variable=library_path softhca)/libibverbs.so.1" && ls "$(pkg-config --cflags-only-I softhca | sed "s/^-I//; s/ *$//")/softhca/softhca.h"' "$version"
        try inside --net dpkg --purge softhca libsofthca-dev libsofthca
        inside --net sh -c 'dpkg -V libibverbs1; md5sum /usr/lib/*/libibverbs.so.1* /usr/lib/*/librdmacm.so.1*' >"$work/after" 2>/dev/null || true
        try cmp "$work/before" "$work/after"
        [ -z "$(inside --net find / -xdev -name '*softhca*' ! -path '/softhca*' ! -path '/etc/*.d/softhca' ! -path '/run/*')" ]
        good "deb: built without warnings of lintian, installed, used, purged"
        ;;
    rpm)
        begin $newest package build package
        try inside --net packaging/rpm.sh
        begin $newest used demo
        packages rpm libncursesw6
        try inside --net sh -c 'rpm -i --nodeps dist/*.rpm && rpm -qa'
        use softhca
        try inside --net sh -c 'rpm -V --nodeps softhca softhca-libs softhca-devel && rpm -e softhca softhca-libs softhca-devel && ! command -v softhca'
        good "rpm: built, installed, used, removed"
        ;;
    tarball)
        tarball
        for release in bullseye $newest; do
            begin "$release" used demo
            packages libncursesw6
            # Somewhere else than where it was built for, and then moved again.
            try inside --net sh -c 'mkdir -p "/srv/a place" && tar -xzf dist/softhca-*-x86_64.tar.gz -C "/srv/a place" && mv "/srv/a place" /srv/elsewhere && mv /srv/elsewhere/* /srv/softhca'
            use /srv/softhca/bin/softhca
            good "tarball: unpacked, moved and used on $release"
        done
        ;;
    arm64)
        tarball aarch64
        begin $newest bare
        try inside '' dpkg --add-architecture arm64
        packages iproute2 qemu-user ibverbs-utils:arm64 perftest:arm64 libncursesw6:arm64
        # The emulator does not run what a program executes: `softhca run` sets its variables for env of this machine,
        # which does without them.
        cat >"$tree/build-emulated" <<'END'
#!/bin/bash
set -e
softhca=(qemu-aarch64 /srv/softhca/bin/softhca)
[ "${1-}" = run ] || exec "${softhca[@]}" "$@"
mapfile -t variables < <("${softhca[@]}" run -- env 2>/dev/null | grep -E '^(LD_|SOFTHCA_)')
program=$(command -v "$3")
for variable in "${variables[@]}"; do set_all+=(-E "$variable"); done
exec qemu-aarch64 "${set_all[@]}" "$program" "${@:4}"
END
        chmod 755 "$tree/build-emulated"
        try inside --net sh -c 'mkdir /srv/softhca && tar -xzf dist/softhca-*-aarch64.tar.gz --strip-components 1 -C /srv/softhca'
        use ./build-emulated
        good "arm64: the tarball unpacked and used, emulated"
        ;;
    action) action $newest ;;
    container)
        tarball
        begin $newest container container
        # There is no registry here: the root of debootstrap has the name of the image.
        tar --create --file "$tree/build-image.tar" --directory "$roots/$newest.bare/root" --exclude './dev/*' .
        # podman's own storage, which cannot be on an overlay; limits that a root without CAP_SYS_RESOURCE can set.
        cat >"$tree/build-steps.sh" <<'END'
set -ex
mkdir -p build-store /var/lib/containers
mount --bind build-store /var/lib/containers
mount -t cgroup2 none /sys/fs/cgroup
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
podman import build-image.tar docker.io/library/debian:13-slim
podman build --pull=never --isolation chroot --network host "${limits[@]}" \
    --tag softhca --file packaging/Containerfile --ignorefile /dev/null dist
run=(podman run --rm --cgroups disabled --network host "${limits[@]}")
"${run[@]}" softhca
"${run[@]}" softhca ibv_devinfo
# A second container without a network, by an ordinary user: two processes of it.
run=(podman run --rm --cgroups disabled --network none "${limits[@]}" --user 1000 --entrypoint bash)
"${run[@]}" softhca -ec '
    softhca run -- ib_send_lat -F -n 20000 >/dev/null &
    until softhca run -- ib_send_lat -F -n 20000 127.0.0.1; do kill -0 $!; done
    wait $!'
END
        try inside '' bash build-steps.sh
        rm -rf "$tree/build-store" "$tree/build-image.tar"
        says '^hca_id:.*softhca0'
        says '^ *2 +20000'
        good "container: podman builds the image, whose devices programs use as root and as a user"
        ;;
    gitlab)
        tarball
        serve
        for from in "/softhca/$file" "$url/softhca/softhca/releases/download/v$version/${file#dist/}"; do
            begin $newest bare
            python3 packaging/steps.py packaging/gitlab-ci.yml "SOFTHCA_TARBALL=$from" >"$tree/build-steps.sh"
            try inside '' bash build-steps.sh
            says '^hca_id:.*softhca0'
        done
        good "gitlab: the job's script ends in a device, with the tarball by path and by address"
        ;;
    newcomer) newcomer $newest ;;
    ubuntu)
        for release in noble jammy; do
            action "$release"
            newcomer "$release"
        done
        ;;
    *) echo "check.sh: nothing is called '$what'" >&2; exit 2 ;;
    esac
    rm -rf "$work"
done
