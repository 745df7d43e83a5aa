# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# A thin door to meson and ninja; `make help` lists what it opens.

BUILD  ?= build
PREFIX ?= /usr/local
DESTDIR ?=
CHECK  ?=
# Of make check and check-long: only the tests of a topic, such as cq (docs/testing.md).
ONLY   ?=
# Of make check-distros: one of them, such as bullseye; and a folder where roots stay, so that the next run is cheap.
DISTRO ?=
ROOTS  ?=

.PHONY: all demo quick check check-long check-distros check-packages deb rpm dist-binary bench bench-check bench-guest install lint clean help

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@scripts/install-deps.sh build
	@meson setup $(BUILD) $(if $(wildcard /usr/include/cmocka.h),,-Dtests=false)

demo:
	@scripts/install-deps.sh build demo
	@$(MAKE) --no-print-directory all
	@scripts/demo.sh $(BUILD)/softhca

quick:
	@scripts/install-deps.sh build check 2>&1
	@scripts/run-tests.py --quick 2>&1

check:
	@scripts/install-deps.sh build check 2>&1
	@scripts/run-tests.py $(if $(ONLY),--only '$(ONLY)') 2>&1

check-long:
	@scripts/install-deps.sh build check long 2>&1
	@scripts/run-tests.py --long $(if $(ONLY),--only '$(ONLY)') 2>&1

check-distros:
	@scripts/install-deps.sh roots
	@SOFTHCA_ROOTS='$(ROOTS)' scripts/check-distros.sh $(DISTRO)

deb:
	@scripts/install-deps.sh build package
	@packaging/deb.sh

rpm:
	@scripts/install-deps.sh build package
	@packaging/rpm.sh

dist-binary:
	@scripts/install-deps.sh roots
	@SOFTHCA_ROOTS='$(ROOTS)' packaging/dist-binary.sh $(ARCH)

check-packages:
	@scripts/install-deps.sh roots
	@SOFTHCA_ROOTS='$(ROOTS)' packaging/check.sh $(PACKAGE)

bench: all
	@scripts/install-deps.sh build bench
	@bench/run $(CHECK)

bench-check:
	@$(MAKE) --no-print-directory bench CHECK=--check

bench-guest: all
	@scripts/install-deps.sh build guest
	@bench/rxe.py --build $(BUILD) $(CHECK)

# A build directory of its own: the prefix is compiled into nothing, but meson remembers it.
install:
	@scripts/install-deps.sh build
	@if [ -d build-install ]; then \
	    meson configure build-install --prefix $(abspath $(PREFIX)); \
	else \
	    meson setup build-install --prefix $(abspath $(PREFIX)) --buildtype release -Dtests=false; \
	fi
	@ninja -C build-install
	@DESTDIR=$(abspath $(DESTDIR)) meson install -C build-install --no-rebuild

lint:
	@scripts/lint.sh

clean:
	@rm -rf build build-gcc build-clang build-asan build-tsan build-install build-distros build-packages

help:
	@echo 'make                        build/softhca and build/lib'
	@echo 'make demo                   install what is missing, build, and show two processes talking'
	@echo 'make quick                  unit tests, simulations, ABI, and the behaviour topics on one path'
	@echo 'make check                  all tests; the last line is "N passed, N failed, N skipped"'
	@echo 'make check ONLY=TOPIC       the tests of a topic, such as cq, on all its paths'
	@echo 'make check-long             these and the long ones, without a limit on time'
	@echo 'make check-distros [DISTRO=bullseye] [ROOTS=FOLDER]  the same tree in other distributions, as root'
	@echo 'make deb, make rpm          packages of this tree, in dist/'
	@echo 'make dist-binary [ARCH=x86_64]  a tarball that runs where it is unpacked, in dist/; as root'
	@echo 'make check-packages         these and packaging/ in fresh roots, as root'
	@echo 'make bench [CHECK=--check]  measurements (against their bars)'
	@echo 'make bench-guest [CHECK=--check]  the network path against the kernel, in a guest of QEMU'
	@echo 'make install PREFIX=/usr/local DESTDIR='
	@echo 'make lint                   formatting, include arrows, static analysis'
