# about: cgroups with limits throttle and park tasks beside hackbench, and tasks change cgroups
# A throttled task waits beside idle CPUs for up to a period of its cgroup, 20 ms here. A task that
# waits for longer was parked and forgotten.
prepare() {
	cd /sys/fs/cgroup || return 1
	echo +cpu >cgroup.subtree_control || return 1
	mkdir a b
	echo "2000 10000" >a/cpu.max
	echo "3000 20000" >b/cpu.max
}

scenario() {
	for group in a a b b; do
		(echo 0 >$group/cgroup.procs && exec magpie-load burn) &
		hogs="$hogs $!"
	done
	(
		for i in 1 2 3 4; do
			sleep 0.01
			echo $! >a/cgroup.procs
			echo "4000 10000" >a/cpu.max
			sleep 0.01
			echo $! >b/cgroup.procs
			echo "1000 5000" >a/cpu.max
		done
	) &
	changes=$!
	watch --seconds 0.1 --with hackbench --threshold-ms 30
	code=$?
	wait $changes
	kill -KILL $hogs
	wait $hogs
	return $code
}
