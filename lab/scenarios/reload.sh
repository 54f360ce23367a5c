# about: the scheduler ends under load and is loaded again
scenario() {
	for i in 1 2 3 4; do
		hackbench -g 1 -l 40 >/dev/null &
		hackbenches="$hackbenches $!"
	done
	unload || return 1
	load || return 1
	enablings=$(cat /sys/kernel/sched_ext/enable_seq)
	wait $hackbenches || return 1
	watch --seconds 0.02 --with hackbench
}
