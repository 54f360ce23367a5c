#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs every test and ends with one line, "N passed, N failed". The checks of
# format and lint count as one test each. A step that fails before it names a
# failed test (it did not build, or it crashed) counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH="$HOME/.cargo/bin:$PATH"

passed=0
failed=0
failures=()
log=$(mktemp)
child=
trap 'rm -f "$log"' EXIT
# `timeout` puts a step into its own process group, which Ctrl-C does not reach.
# Without this trap, cargo and virtual machines would outlive the script.
trap '[ -n "$child" ] && kill "$child"; exit 130' INT TERM HUP

# A step that still runs so many seconds after the start of this script has failed.
time_limit=${MAGPIE_TIME_LIMIT:-5100}
seconds_left() { echo $((SECONDS < time_limit ? time_limit - SECONDS : 1)); }

fail_step() {
	failed=$((failed + 1))
	failures+=("$1")
}

# run COMMAND...: runs it in the background and waits, because bash runs no trap
# while a command is in the foreground.
run() {
	timeout "$(seconds_left)" "$@" &
	child=$!
	wait "$child"
}

# check NAME COMMAND...: counts one test, which passes if the command succeeds.
check() {
	local name=$1
	shift
	echo "== $name"
	if run "$@"; then
		passed=$((passed + 1))
	else
		fail_step "$name"
	fi
}

# tests NAME COMMAND...: runs cargo's test harness and adds up the tests of its
# "test result:" lines.
tests() {
	local name=$1 status counts p f
	shift
	echo "== $name"
	timeout "$(seconds_left)" "$@" >"$log" 2>&1 &
	child=$!
	tail -n +1 -f --pid="$child" "$log" &
	wait "$child"
	status=$?
	wait
	counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$log")
	f=0
	while read -r p n; do
		passed=$((passed + ${p:-0}))
		f=$((f + ${n:-0}))
	done <<<"$counts"
	failed=$((failed + f))
	if [ "$f" -gt 0 ]; then
		failures+=("$name: $f")
	elif [ "$status" != 0 ]; then
		[ "$status" = 124 ] && echo "$name: stopped $time_limit s after the start" >&2
		fail_step "$name"
	elif [ -z "$counts" ]; then
		echo "$name: no test ran" >&2
		fail_step "$name"
	fi
}

c_sources() { git ls-files -z '*.c' '*.h'; }
format_is_kept() { c_sources | xargs -0 clang-format-19 --dry-run --Werror; }

# make uninstall removes everything that make install put into an empty folder,
# and no file of anyone else.
installation_is_clean() {
	local folder status=1
	folder=$(mktemp -d)
	mkdir -p "$folder/usr/local/bin" && touch "$folder/usr/local/bin/other"
	make --no-print-directory install DESTDIR="$folder" >/dev/null &&
		"$folder/usr/local/bin/scx_magpie" --version &&
		grep -q '^ExecStart=/usr/local/bin/scx_magpie ' \
			"$folder/usr/lib/systemd/system/scx_magpie.service" &&
		make --no-print-directory uninstall DESTDIR="$folder" >/dev/null &&
		[ "$(find "$folder" -type f)" = "$folder/usr/local/bin/other" ] &&
		status=0
	rm -rf "$folder"
	return $status
}
export -f c_sources format_is_kept installation_is_clean

check "Rust format" cargo fmt --all --check
check "C format" bash -c format_is_kept
# One profile for everything: the tests run the programs that users run, and the
# dependencies are built once.
check "release build" cargo build --release --workspace
check "installation" bash -c installation_is_clean
check "lint" cargo clippy --release --workspace --all-targets --quiet -- -D warnings
tests "unit tests" cargo test --release --workspace --exclude magpie-tests --no-fail-fast
tests "tests in virtual machines" \
	cargo test --release -p magpie-tests --no-fail-fast -- --test-threads=2

for failure in "${failures[@]}"; do
	echo "failed: $failure"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
