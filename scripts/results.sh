#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Measures the result files of docs/results/, and makes from them the tables and pictures of
# docs/results.md, docs/callback-cost.md and the mechanisms' pages. `make results` builds first
# and then runs this.
#
#   make results                        what was not measured with this tree yet
#   make results ONLY=hackbench-vt2     these, separated by spaces
#   make results FORCE=1                all, or those of ONLY, even if already measured
#
# `make gate` runs it with GATE=1: the results of $gated are measured into target/gate/, for EEVDF
# and scx_magpie only. Each is compared with the file of the last release, or with that of the tree
# if the release has none, and the gate fails if a row is worse. In virtual time the host's load
# does not matter, and the comparison is relative to each file's own EEVDF, so any machine can be
# the gate.
#
#   GATE=1                              measure and compare; a loss up to LIMIT=3% passes
#   GATE=1 MEASURED=1                   compare again what is in target/gate/
#
# A file names the commit that it was measured with. It is skipped if nothing that runs has changed
# since that commit, so an interrupted `make results` continues where it was. A peer is measured too
# where it is installed (`magpie bench peers install scx_cosmos scx_bpfland scx_lavd scx_flash`).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH="$HOME/.cargo/bin:$PATH"

magpie=target/release/magpie
# Throughput, wakeup latency alone and beside hogs, requests, threads on half of the CPUs: meant to
# take a quarter of an hour. Not fairness, because the rounds of one measurement of it differ up to
# 3.6 times, so that a loss of 50 % would pass.
gated="steal-vt8 latency-vt8 queue-vt2 services-vt8 spread-vt8"
pages=(docs/results.md docs/callback-cost.md docs/mechanisms/*.md)
folder=docs/results
# A result depends on these files.
sources=(scheduler lab bench magpie Cargo.toml Cargo.lock kernels.lock)

# EEVDF with and without cache-aware scheduling, which 7.2 began: the better one is the baseline of
# each test, because to beat the other one alone is no gain.
plain='eevdf{llc_balancing=0}'
baseline=(--baseline "eevdf,$plain")
schedulers=$plain,scx_magpie
for peer in scx_cosmos scx_bpfland scx_lavd scx_flash; do
	[ -x "target/peers/bin/$peer" ] && schedulers+=,$peer
done

measure_all() {
	result hackbench-vt2 --in vtime --machine vt2 --sched "$schedulers" "${baseline[@]}" \
		--workload hackbench --groups 1,2,4,8 --loops 50 --rounds 6
	result hackbench-vt16 --in vtime --machine vt16 --sched "$schedulers" "${baseline[@]}" \
		--workload hackbench --groups 1,2,4,8 --loops 30 --rounds 6
	result latency-vt8 --in vtime --machine vt8 --sched "$schedulers" "${baseline[@]}" \
		--workload latency --set threads=4 --set seconds=1 --rounds 6
	result services-vt8 --in vtime --machine vt8 --sched "$schedulers" "${baseline[@]}" \
		--workload services --set clients=4,16 --set seconds=1 --rounds 6
	result feel-vt8 --in vtime --machine vt8 --sched "$schedulers" "${baseline[@]}" \
		--workload pairs,frames,audio --set beside=hogs,build \
		--set seconds=0.5 --set warmup=0.1 --rounds 6
	result pipe-vt8w2 --in vtime --machine vt8w2 --sched "$schedulers" "${baseline[@]}" \
		--workload pipe --set round_trips=5000 --rounds 6
	result callbacks-vt4 callbacks --sched "$schedulers" --groups 2 --loops 100

	result fairness-vt8 --in vtime --machine vt8 --sched "$schedulers" "${baseline[@]}" \
		--workload fairness,weights,cyclictest --set hogs=8,12 --set seconds=2 --rounds 4
	slow network-vt8 --in vtime --machine vt8 --sched "$schedulers" "${baseline[@]}" \
		--workload tbench,redis --set clients=8 --set seconds=2 --set requests=5000 --rounds 4

	# One table for each mechanism: with it, and without it or without a part of it.
	without queue vt2 "--no-preempt" --workload cyclictest --set hogs=4 --set seconds=1
	without shorter-first vt16 "--no-shorter-first" --workload cyclictest --set hogs=16 \
		--set seconds=1
	without steal vt8 "--no-steal --no-steal-gate" --workload hackbench --groups 2 --loops 50
	without wakeup vt8 "--no-wakeup --no-wakeup-idle-core" \
		--workload latency --set threads=4 --set seconds=0.5
	without queue-choice vt8 "--no-wakeup-queue-choice" --workload pairs,audio \
		--set beside=build --set seconds=0.4 --set warmup=0.1
	without fork vt16 "--no-fork" --workload hackbench --groups 1,2 --loops 30
	without spread vt8 "--no-spread" --workload primesieve --set threads=50%
	without balance vt8 "--no-balance" --workload fairness --set hogs=12 --set seconds=2
	without push vt8 "--no-push" --workload spread
	without cpu-max vt2 "--no-cpu-max" --workload quota
	without cpu-weight vt2 "--no-cpu-weight" --workload shares
	# Each of these alone, where memory costs. Such a guest is slow, so the windows are short.
	without left-out vt8-mem "--no-steal --no-wakeup --no-wakeup-idle-core --no-move-cost \
		--no-wakeup-queue-choice --no-fork --no-spread --no-balance --no-push --no-patience" \
		--workload hackbench,working-set --set groups=2 --set loops=10 \
		--set threads=75% --set seconds=0.04 --set warmup=0.02

	# These take long, or want the host for themselves: only if ONLY names them.
	kernels steal vt16 --suite steal --set groups=1,4 --set loops=10 --rounds 5
	kernels latency vt16 --suite latency --set threads=4 --set seconds=1 --rounds 5
	kernels steal vt64 --suite steal --set groups=1,4 --set loops=10 --rounds 5
	kernels latency vt64 --suite latency --set threads=8 --set hogs=32 --set seconds=1 --rounds 5
	kernels push vt16 --workload hackbench,latency,services --set groups=1,8 --set loops=5 \
		--set threads=4 --set clients=8 --set seconds=0.3 --rounds 5
	kernels push vt64 --workload hackbench,latency,services --set groups=1,8 --set loops=5 \
		--set threads=4 --set clients=8 --set seconds=0.3 --rounds 5
	# Few clients, because a round trip is quick in virtual time, and each takes the host's time.
	kernels push-tbench vt16 --workload tbench --set clients=2 --set seconds=2 --rounds 5
	kernels push-tbench vt64 --workload tbench --set clients=2 --set seconds=2 --rounds 5
	slow working-set-vt8-mem --in vtime --machine vt8-mem --sched "$schedulers" "${baseline[@]}" \
		--workload working-set --set threads=50%,75%,100%,150% --set kib=64,512,4096 \
		--set seconds=0.04 --set warmup=0.02 --rounds 4
	slow hackbench-vt8-mem --in vtime --machine vt8-mem --sched "$schedulers" "${baseline[@]}" \
		--workload hackbench --groups 1,2,4 --loops 30 --rounds 4
	slow hackbench-vt64 --in vtime --machine vt64 --sched "$schedulers" "${baseline[@]}" \
		--workload hackbench --groups 1,2,4,8 --loops 100 --rounds 4
	slow hackbench-xeon-8380 --in vtime --machine xeon-8380 --sched "$plain,scx_magpie" \
		"${baseline[@]}" --workload hackbench --groups 1,2,3,4,8 --loops 50 --rounds 4
	large threadripper-3970x --rounds 6
	large epyc-2x64 --rounds 4
	slow half-threadripper-3970x --in vtime --machine threadripper-3970x \
		--sched "$plain,scx_magpie" "${baseline[@]}" --workload primesieve,x265,sqlite \
		--set limit=3e9 --set threads=50% --set jobs=50% \
		--set width=1280 --set height=720 --set frames=20 --rounds 4
	slow overcommit-vt8on2 --in vtime --machine vt8on2 \
		--sched 'by-hand=eevdf{boot:maxcpus=2},scx_magpie,scx_magpie --no-preferred' \
		--workload hackbench --set groups=1,4 --set loops=400 --rounds 4
	slow neighbours-vt8on2 --host lab/hosts/neighbours.toml \
		--sched 'scx_magpie,by-hand=eevdf{boot:maxcpus=1}' \
		--workload hackbench --groups 1 --loops 50 --rounds 4
	slow small-vt2 --host lab/hosts/small.toml --sched scx_magpie --neighbour eevdf \
		--workload hackbench --groups 1 --loops 40 --repeat 4 --rounds 4
	slow hackbench-flat8 --in vm --machine flat8 --sched scx_magpie \
		--workload hackbench --groups 1,4 --loops 50 --rounds 7
	# On two CPUs of the host, which `make` names: a guest with more vCPUs is then overcommitted.
	confined=(taskset -c "${TWO_CPUS:-0,1}")
	slow preferred-flat8 --in vm --machine flat8 --sched 'scx_magpie,scx_magpie --no-preferred' \
		--workload hackbench --groups 1 --loops 50 --rounds 7
	confined=()
}

# without NAME MACHINE "SWITCH..." ARGUMENTS...: the result NAME, of a mechanism and its switches.
without() {
	local name=$1 machine=$2 candidates=scx_magpie switch
	[ -n "${GATE-}" ] || for switch in $3; do candidates+=",scx_magpie $switch"; done
	shift 3
	result "$name-$machine" --in vtime --machine "$machine" --sched "$candidates" "$@" --rounds 4
}

# kernels NAME MACHINE ARGUMENTS...: EEVDF and scx_magpie on each series, and EEVDF without
# cache-aware scheduling, which 7.2 began. The sizes are few, because seven candidates run each.
kernels() {
	local name=$1 machine=$2
	shift 2
	slow "kernels-$name-$machine" --in vtime --machine "$machine" \
		--sched 'eevdf{llc_balancing=0},eevdf@7.0,eevdf@6.19,scx_magpie,scx_magpie@7.0,scx_magpie@6.19' \
		"$@"
}

# large MACHINE ARGUMENTS...: what a machine with many LLCs has to show. Most of its CPUs idle with one
# group, and have work with eight. Short, because so many CPUs take the host's time.
large() {
	local machine=$1
	shift
	slow "large-$machine" --in vtime --machine "$machine" --sched "$plain,scx_magpie" "${baseline[@]}" \
		--workload hackbench,latency,services --set groups=1,8 --set loops=20 --set threads=8 \
		--set clients=8 --set seconds=0.1 "$@"
}

# A command in front of each measurement.
confined=()
known=()
made=0
skipped=0
failed=()

fail() {
	echo "results: $2" >&2
	failed+=("$1")
}

if [ -n "${GATE-}" ]; then
	ONLY=${ONLY:-$gated}
	schedulers=scx_magpie
	baseline=()
fi

# Does ONLY name it? Without ONLY, everything but the slow ones is wanted.
is_named() { [[ " ${ONLY-} " == *" $1 "* ]]; }

# Has nothing that runs changed since the commit that a result file names?
is_current() {
	local commit
	[ -f "$1" ] || return 1
	commit=$("$magpie" bench show "$1" | awk '$1 == "commit" {print $2; exit}')
	git diff --quiet "$commit" HEAD -- "${sources[@]}" 2>/dev/null
}

slow() {
	known+=("$1")
	if is_named "$1"; then make_one "$@"; fi
}

result() {
	known+=("$1")
	if [ -z "${ONLY-}" ] || is_named "$1"; then make_one "$@"; fi
}

make_one() { if [ -n "${GATE-}" ]; then judge "$@"; else measure "$@"; fi; }

# The commit whose result file the gate compares with: the last release, if it has the file.
reference_for() {
	local release
	release=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null)
	if [ -n "$release" ] && git cat-file -e "$release:$1" 2>/dev/null; then
		echo "$release"
	else
		echo HEAD
	fi
}

# judge NAME ARGUMENTS...: runs `magpie bench ARGUMENTS`, and compares with the result NAME.
judge() {
	local name=$1 file=$folder/$1.json.gz new=target/gate/$1.json.gz
	local old=target/gate/$1.before.json.gz reference status
	shift
	reference=$(reference_for "$file")
	mkdir -p target/gate
	if ! git show "$reference:$file" >"$old"; then
		fail "$name" "there is nothing to compare $name with: measure it with 'make results ONLY=$name', and commit it"
		return
	fi
	if [ -z "${MEASURED-}" ]; then
		echo "gate: $name: magpie bench $*"
		"${confined[@]}" "$magpie" bench "$@" --json "$new"
		status=$?
		[ "$status" = 130 ] && exit 130
		if [ "$status" != 0 ]; then
			fail "$name" "$name failed; what was measured until then is in $new"
			return
		fi
	fi
	echo "gate: $name against that of $reference"
	if ! "$magpie" bench compare "$old" "$new" --sched scx_magpie \
		--normalized --fail-over "${LIMIT:-3%}"; then
		fail "$name" "$name does not pass; see it with '$magpie bench show $old' and '... $new'"
		return
	fi
	made=$((made + 1))
}

# measure NAME ARGUMENTS...: runs `magpie bench ARGUMENTS` into the file NAME, and updates the page.
measure() {
	local name=$1 file=$folder/$1.json.gz partial=target/results/$1.json.gz status page
	shift
	if [ -z "${FORCE-}" ] && is_current "$file"; then
		echo "results: $name was measured with this tree; FORCE=1 measures it again"
		skipped=$((skipped + 1))
		return
	fi
	page=$(grep -lxF "<!-- table: $name -->" "${pages[@]}" | head -1)
	if [ -z "$page" ]; then
		fail "$name" "no page has a place for $name: add the lines '<!-- table: $name -->' and '<!-- end -->' to one of ${pages[*]}"
		return
	fi
	echo "results: $name: magpie bench $*"
	mkdir -p "$folder" target/results
	# A file that is there is whole: what is interrupted or fails stays in target/.
	"${confined[@]}" "$magpie" bench "$@" --json "$partial"
	status=$?
	[ "$status" = 130 ] && exit 130
	if [ "$status" != 0 ]; then
		fail "$name" "$name failed; what was measured until then is in $partial"
		return
	fi
	mv "$partial" "$file"
	if ! "$magpie" bench show --into "$page" "$file"; then
		fail "$name" "the table of $name could not be written into $page"
		return
	fi
	if grep -qF "pictures/$name.svg" "$page" &&
		! "$magpie" bench show --svg "docs/pictures/$name.svg" "$file"; then
		fail "$name" "the picture of $name could not be drawn"
		return
	fi
	made=$((made + 1))
}

if [ -z "${GATE-}" ] && ! git diff --quiet HEAD -- . ':!docs'; then
	echo "results: the tree has changes that are not committed: commit them first," \
		"because each result names the commit that it was measured with" >&2
	exit 1
fi

measure_all

for name in ${ONLY-}; do
	[[ " ${known[*]} " == *" $name "* ]] ||
		fail "$name" "there is no result $name; there are: ${known[*]}"
done
if [ -n "${GATE-}" ]; then
	echo "gate: $made passed, ${#failed[@]} failed ${failed[*]}"
else
	echo "results: $made made, $skipped skipped, ${#failed[@]} failed ${failed[*]}"
fi
[ "${#failed[@]}" = 0 ]
