#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Installs what building and testing Magpie need and this machine lacks.
#
# On Debian and Ubuntu, as root, it installs. Anywhere else it prints exactly
# what is missing and fails. If nothing is missing it prints nothing and takes
# no time, so that build, run and test can begin with it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH="$HOME/.cargo/bin:$PATH"

# As in Cargo.toml.
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# With the word "packages", what making packages needs, too.
purpose=${1:-}
missing=()

# need PACKAGE TEST...: the package is missing unless the test succeeds. A test
# looks for the program or file and not for the package, because the user may
# have installed it in another way.
need() {
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || missing+=("$package")
}
has() { command -v "$1"; }
has_header() { [ -e "/usr/include/$1" ]; }
has_static_busybox() { [ -x /bin/busybox ] && ! ldd /bin/busybox; }
has_bpf_clang() { scripts/bpf-clang -dumpversion; }
has_libclang() { compgen -G '/usr/lib*/llvm-*/lib/libclang*.so*' || compgen -G '/usr/lib*/libclang.so*'; }

find_missing() {
	missing=()
	need gcc has cc
	need libc6-dev has_header stdio.h
	need clang-19 has_bpf_clang
	need libclang1-19 has_libclang
	need clang-format-19 has clang-format-19
	need libelf-dev has_header libelf.h
	need zlib1g-dev has_header zlib.h
	need libssl-dev has_header openssl/opensslv.h
	need flex has flex
	need bison has bison
	need bc has bc
	need patch has patch
	need pkg-config has pkg-config
	need qemu-system-x86 has qemu-system-x86_64
	need busybox-static has_static_busybox
	need cpio has cpio
	need zstd has zstd
	need rt-tests has hackbench
	need stress-ng has stress-ng
	[ "$purpose" = packages ] || return 0
	need debhelper has dh
	need lintian has lintian
}

fail() {
	printf 'setup: %s\n' "$@" >&2
	exit 1
}

has_apt() { has apt-get && has dpkg-deb; }

# Each step has a time limit: without a network, apt would wait for minutes.
apt() {
	DEBIAN_FRONTEND=noninteractive timeout 1200 apt-get -q \
		-o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
		-o DPkg::Lock::Timeout=300 "$@"
}

install_packages() {
	local all="${missing[*]}"
	echo "setup: missing: $all"
	has_apt >/dev/null ||
		fail "this is not Debian or Ubuntu; install what provides these (the names are Debian's): $all"
	[ "$(id -u)" = 0 ] || fail "not root; run: sudo apt-get install $all"
	echo "setup: apt-get update"
	apt update >/dev/null || echo "setup: apt-get update failed, trying with the old package lists" >&2
	echo "setup: apt-get install $all"
	apt install -y --no-install-recommends "${missing[@]}" ||
		fail "apt-get could not install them (its reason is above); install by hand: $all"
	find_missing
	[ ${#missing[@]} = 0 ] || fail "still missing after the installation: ${missing[*]}"
}

# rust_is_new_enough: cargo exists and has at least the version of Cargo.toml.
rust_is_new_enough() {
	local version
	version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
	[ -n "$version" ] && [ "$(printf '%s\n' "$rust" "$version" | sort -V | head -1)" = "$rust" ]
}

install_rust() {
	has rustup >/dev/null ||
		fail "Rust $rust or newer is needed, found: $(cargo --version 2>/dev/null || echo none)" \
			"install it with rustup: https://www.rust-lang.org/tools/install"
	echo "setup: rustup toolchain install stable"
	timeout 1200 rustup toolchain install stable --profile minimal -c rustfmt -c clippy ||
		fail "rustup could not install Rust $rust (its reason is above)"
	rust_is_new_enough ||
		fail "the toolchain in use is older than $rust; run: rustup default stable"
}

find_missing
[ ${#missing[@]} = 0 ] || install_packages
rust_is_new_enough || install_rust
if ! has cargo-clippy >/dev/null || ! has rustfmt >/dev/null; then
	has rustup >/dev/null || fail "clippy and rustfmt are missing; install them beside cargo"
	echo "setup: rustup component add rustfmt clippy"
	timeout 600 rustup component add rustfmt clippy || fail "rustup could not add them"
fi
