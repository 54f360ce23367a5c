# about: CPUs go offline and come back under hackbench
scenario() {
	watch --seconds 0.05 --with hackbench,hotplug
}
