# about: affinities, nice values and policies change under hackbench
scenario() {
	watch --seconds 0.05 --with hackbench,affinity
}
