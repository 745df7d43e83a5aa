#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-distro.sh RELEASE [PART…]   (bullseye, bookworm, trixie, sid, jammy, noble; alma8 to alma10)
# The tree in a fresh root of another distribution, and its programs, unmodified, as ordinary users. Parts, all of them
# by default:
#   gcc, clang   builds without a warning; the tree of the other parts is gcc's
#   lto          builds with link-time optimisation, as some distributions build all packages, and exports the same
#   demo         make demo
#   quick        the tests of make quick
#   programs     ibverbs-utils, perftest, rdmacm-utils, rsockets, qperf, fio, UCX, libfabric, Open MPI, MPICH
#   conformance  pyverbs, and rdma-core's own tests of that release
#   providers    its vendors' provider libraries find every symbol in ours
#   packages     each package that links the libraries has a row in docs/programs.md
#   served       its programs with the library that Debian 11 built
# SOFTHCA_ROWS: of what counts its cases, only rows whose name matches this regular expression.
# Needs root, debootstrap and a mirror; exit status 77 and the reason where one of them is missing. What came out is
# in $SOFTHCA_RESULTS (build-distros), of which scripts/distro-table.py makes the table of docs/conformance.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh
. scripts/distro.sh
name=${1:?usage: check-distro.sh RELEASE [PART…]}
shift
parts=("${@:-all}")
case $name in
alma*) skip "$name: not tried, for debootstrap, which makes the roots here, knows no AlmaLinux" ;;
esac

results=${SOFTHCA_RESULTS:-build-distros}
mkdir -p "$results"
results=$(cd "$results" && pwd)
distro_begin "$name"
distro_with full build distro
distro_tree
failed=0

wanted()
{
    [[ " ${parts[*]} " == *" all "* || " ${parts[*]} " == *" $1 "* ]]
}

# A row of the table replaces what an earlier run said. $1: row, $2: outcome
report()
{
    local file=$results/$name.tsv
    touch "$file"
    awk -F'\t' -v row="$1" '$1 != row' "$file" >"$file.new"
    printf '%s\t%s\n' "$1" "$2" >>"$file.new"
    mv "$file.new" "$file"
    echo "$name: $1: $2"
}

# What holds or does not. $1: row, the rest: a command
step()
{
    local row=$1
    shift
    if "$@" >"$work/step" 2>&1 && ! grep -q 'warning:' "$work/step"; then
        report "$row" yes
    else
        grep -E "error|undefined|warning:" "$work/step" | tail -n60
        tail -n10 "$work/step"
        report "$row" no
        failed=1
        return 1
    fi
}

# What counts its cases in TAP. $1: row, the rest: a command
cases()
{
    local row=$1 status=0 passed refused skipped
    shift
    [[ $row =~ ${SOFTHCA_ROWS:-} ]] || return 0
    "$@" >"$work/tap" 2>"$work/tap.err" || status=$?
    passed=$(grep -acE '^ok .*' "$work/tap") || true
    skipped=$(grep -acE '^ok .*# SKIP|^1\.\.0 # SKIP' "$work/tap") || true
    refused=$(grep -acE '^not ok' "$work/tap") || true
    if grep -aq '^1\.\.0' "$work/tap"; then
        report "$row" "skipped: $(sed -n 's/^1\.\.0 # SKIP //p' "$work/tap")"
        return
    fi
    passed=$((passed - skipped))
    grep -a -A30 '^not ok' "$work/tap" || true
    if [ "$status" -ne 0 ] || [ $((passed + skipped)) -eq 0 ]; then
        tail -n5 "$work/tap.err"
        failed=1
        [ "$refused" -gt 0 ] || {
            report "$row" "ended with exit status $status after $passed passed"
            return
        }
    fi
    report "$row" "$passed passed, $refused failed, $skipped skipped"
}

packaged()
{
    # shellcheck disable=SC2016
    inside '' dpkg-query -W -f '${Version}' "$1" 2>/dev/null
}

if wanted gcc || wanted clang; then
    report 'rdma-core' "$(packaged libibverbs1)"
    # shellcheck disable=SC2016
    report 'glibc, gcc, clang, meson' "$(inside '' sh -c 'ldd --version | sed -n "1s/.* //p"; gcc -dumpfullversion
        clang --version | sed -n "1s/.*version \([0-9.]*\).*/\1/p"; meson --version' | paste -sd, | sed 's/,/, /g')"
fi
# A build directory is ninja's, of an earlier check as well.
setup()
{
    [ -e "$tree/$1/build.ninja" ] || inside --net env CC="$2" meson setup "$1" -Dwerror=true
}
# $1: build directory, $2: compiler
built()
{
    setup "$1" "$2" && inside --net ninja -k 0 -C "$1"
}
if wanted gcc; then
    step 'builds with gcc without warnings' built build gcc || true
fi
if wanted clang; then
    step 'builds with clang without warnings' built build-clang clang || true
fi
exports()
{
    nm -D --defined-only "$tree/$1" | sed 's/^[0-9a-f]* //' | sort
}
# The libraries and tools: --wrap, of some tests, has no effect on what is optimised like that.
built_with_lto()
{
    local library
    [ -e "$tree/build-lto/build.ninja" ] ||
        inside --net meson setup build-lto -Dwerror=true -Db_lto=true -Dtests=false -Dbench=false || return
    inside --net ninja -k 0 -C build-lto || return
    for library in libibverbs librdmacm; do
        cmp <(exports "build/lib/$library.so.1") <(exports "build-lto/lib/$library.so.1") || return
    done
}
if wanted lto; then
    step 'builds with link-time optimisation' built_with_lto || true
fi
[ -x "$tree/build/softhca" ] || { echo "$name: build/softhca is not there"; exit 1; }

if wanted demo; then
    step 'make demo' inside --net make demo || true
fi
if wanted quick; then
    inside --net scripts/run-tests.py --quick >"$work/quick" 2>&1 || {
        failed=1
        tail -n60 "$work/quick"
    }
    report 'make quick' "$(tail -n1 "$work/quick")"
fi

# $1: where lib and softhca are, $2: what to put behind the names of rows
programs()
{
    local where=(--lib "$1/lib" --softhca "$1/softhca") what=$2
    # Newer ones call into the vendor's library for the part numbers that the others pretend to.
    cases "ibverbs-utils$what" inside --net tests/programs/run.py "${where[@]}" --filter '^(ring )?ibv_'
    cases "perftest$what" inside --net tests/programs/run.py "${where[@]}" --filter '^ring ib_(?!.*known part)'
    cases "rdmacm-utils$what" inside --net tests/programs/cm.py "${where[@]}" --filter '^(rping|udaddy|ucmatose|cmtime|mckey|rdma_)'
    cases "perftest -R$what" inside --net tests/programs/cm.py "${where[@]}" --filter '^ib_'
    cases "rsockets$what" inside --net tests/programs/rsockets.py "${where[@]}" --filter '^(?!.*librspreload)'
    cases "librspreload$what" inside --net tests/programs/rsockets.py "${where[@]}" --filter 'librspreload'
    cases "qperf$what" inside --net tests/programs/cm.py "${where[@]}" --filter '^qperf'
    cases "fio$what" inside --net tests/programs/cm.py "${where[@]}" --filter '^fio'
    cases "UCX$what" inside --net tests/programs/cm.py "${where[@]}" --filter '^UCX'
    cases "libfabric$what" inside --net tests/programs/libfabric.py "${where[@]}"
    cases "Open MPI$what" inside --net tests/programs/mpi.py "${where[@]}" --filter 'auto Open MPI'
    cases "MPICH$what" inside --net tests/programs/mpi.py "${where[@]}" --filter 'auto MPICH'
}
if wanted programs; then
    step 'UCX finds rc_verbs' inside --net sh -c 'build/softhca run -- ucx_info -d | grep rc_verbs' || true
    programs build ''
fi

if wanted conformance; then
    # shellcheck disable=SC2016
    step 'pyverbs' inside --net scripts/as-user.sh build/softhca run -- python3 -c '
import pyverbs.device as d
names = [x.name.decode() for x in d.get_device_list()]
assert names, "no device"
[d.Context(name=n).query_device() for n in names]' || true
    older=()
    # Suites before 44 take any device, also that of lo, to whose addresses rdma_bind_addr() binds no device.
    case $name in bullseye | jammy) older=(--older --dev softhca0) ;; esac
    for user in root ordinary namespace; do
        cases "rdma-core's tests, $user" inside --net tests/conformance/run.py --softhca build/softhca --user "$user" "${older[@]}"
    done
fi

if wanted providers; then
    cases 'provider libraries' inside --net tests/programs/providers.py build/lib
fi

if wanted packages; then
    cases 'packages with a row in programs.md' inside --net tests/programs/packages.py
fi

if wanted served; then
    old=$roots/bullseye.tree/build
    if [ "$name" = bullseye ]; then
        :
    elif [ -e "$old/softhca" ]; then
        # The files that build/lib links to.
        rm -rf "$tree/build-bullseye"
        mkdir -p "$tree/build-bullseye/lib"
        cp -L "$old/lib/"* "$tree/build-bullseye/lib/"
        cp "$old/softhca" "$tree/build-bullseye/"
        cases "provider libraries, built on Debian 11" inside --net tests/programs/providers.py build-bullseye/lib
        programs build-bullseye ', built on Debian 11'
    else
        echo "$name: SOFTHCA_ROOTS has no library that bullseye built"
    fi
fi
exit $failed
