# about: real-time tasks preempt hackbench on two CPUs, again and again
scenario() {
	(
		for i in 1 2 3 4 5; do
			timeout 0.008 taskset -c 1 chrt -f 50 magpie-load burn &
			timeout 0.004 taskset -c 2 chrt -f 50 magpie-load burn
			wait
		done
	) >/dev/null 2>&1 &
	watch --seconds 0.05 --with hackbench
}
