#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Makes docs/pictures/top.svg, the picture of `magpie top` in the README: records a session in a
# guest of eight CPUs under load, and replays the recording as a picture. Run `make build` first.
# With FILE as its argument it writes that picture instead, and leaves the README's alone.
set -euo pipefail
picture=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
programs=target/release
session=$(mktemp)
trap 'rm -f "$session"' EXIT

# Tasks that wake each other, and a cgroup that reaches its limit.
load='
mkdir /sys/fs/cgroup/web
echo 40000 100000 >/sys/fs/cgroup/web/cpu.max
(echo 0 >/sys/fs/cgroup/web/cgroup.procs; exec magpie-load hogs --count 2 --seconds 60) >/dev/null &
(while :; do hackbench -g 1 -l 100; done) >/dev/null 2>&1 &
magpie top --screens 8 --record /tmp/session >/dev/null
cat /tmp/session'
"$programs/magpie" lab run --machine vt8 --sched scx_magpie --package rt-tests \
	--copy "$programs/magpie" --copy "$programs/magpie-load" -- sh -c "$load" >"$session"
"$programs/magpie" top --replay "$session" --screens 8 --picture "${picture:-docs/pictures/top.svg}"
