#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds scx_loader from its crate, with scx_magpie in its list, and prints the
# path of the program. The first build takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

version=1.1.3 # packaging/scx_loader.diff is for this version
patch=$PWD/packaging/scx_loader.diff
work=$PWD/target/scx_loader

mkdir -p "$work/fetch/src"
exec 9>"$work/lock"
flock 9

# cargo downloads a crate only for a package that depends on it.
stamp="$version $(sha256sum "$patch")"
if [ "$(cat "$work/stamp" 2>/dev/null)" != "$stamp" ]; then
	cat >"$work/fetch/Cargo.toml" <<-END
		[package]
		name = "fetch"
		edition = "2024"
		[dependencies]
		scx_loader = "=$version"
		[workspace]
	END
	touch "$work/fetch/src/lib.rs"
	host=$(rustc -vV | sed -n 's/^host: //p')
	manifest=$(cargo metadata --quiet --format-version 1 --filter-platform "$host" \
		--manifest-path "$work/fetch/Cargo.toml" |
		grep -o "\"manifest_path\":\"[^\"]*/scx_loader-$version/Cargo.toml\"" | cut -d '"' -f 4)
	rm -rf "$work/source"
	cp -r "$(dirname "$manifest")" "$work/source"
	patch --quiet --strip=1 --fuzz=0 --directory="$work/source" <"$patch" >&2
	# Without this, cargo would look for it in the workspace of this tree.
	echo '[workspace]' >>"$work/source/Cargo.toml"
	echo "$stamp" >"$work/stamp"
fi
cargo build --release --locked --manifest-path "$work/source/Cargo.toml" \
	--target-dir "$work/build" >&2 9>&-
echo "$work/build/release/scx_loader"
