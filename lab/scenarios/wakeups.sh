# about: wakeups and steals: hackbench and bursts of forks
scenario() {
	watch --seconds 0.05 --with hackbench,forks
}
