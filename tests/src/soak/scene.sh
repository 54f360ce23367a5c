#!/bin/sh
# A scene of a soak, in the guest: soak-scene SECONDS WATCH DISTURBANCE...
#
# Runs the disturbances together for a time, and beside them magpie-load starvation with the options
# WATCH. A disturbance is a function below with its arguments. It counts what it did in lines
# "count WHAT NUMBER": only what succeeded, so that a test can rely on a count. What a test counts is
# done at least once, however short the time. The soak prints lines with the word "failed". The scene
# ends with the exit code of the watch.
seconds=$1
watch=$2
shift 2

uptime_ms() {
	read -r up rest </proc/uptime
	echo "${up%.*}${up#*.}0"
}
began=$(uptime_ms)
end=$((began + seconds * 1000))
over() {
	[ "$(uptime_ms)" -ge $end ]
}

count() {
	echo "count $1 $2"
}

# Start hogs in the current shell's cgroup, until the scene kills them.
hogs() {
	for i in $(seq "$1"); do
		magpie-load burn &
		pids="$pids $!"
	done
}
end_hogs() {
	kill -CONT $pids 2>/dev/null
	kill -KILL $pids 2>/dev/null
	wait $pids 2>/dev/null
}

# Wait for the hogs in $pids, and add to $n those that ran until `timeout` ended them. A hog whose
# chrt or taskset fails ends with that program's code.
end_of_timeouts() {
	for pid in $pids; do
		wait "$pid" 2>/dev/null
		[ $? = 124 ] && n=$((n + 1))
	done
	pids=
}

# A cgroup of this scene, where tasks can be moved.
group() {
	mkdir -p "/sys/fs/cgroup/$1"
}

# stress-ng has a session of its own: in the scene's process group, its end took the scene's shells
# along (class "wait" beside the freezer, four times of four), and the scene never ended.
stress() { # CLASS COUNT SEED
	setsid stress-ng --seed "$3" --"$1" "$2" --timeout "$seconds" --temp-path /tmp --metrics-brief >/tmp/stress 2>&1
	code=$?
	case $code in
	0) count "stress-ng $1" 1 ;;
	# 3: memory or a system call is missing; 4: this machine or kernel has no such class.
	3 | 4) count "stress-ng $1, skipped" 1 ;;
	*) echo "stress-ng --$1 failed with $code: $(tail -n 5 /tmp/stress | tr '\n' ' ')" ;;
	esac
}

hackbench_again() {
	n=0
	until over; do
		if hackbench -g 1 -l 50 >/dev/null; then n=$((n + 1)); else echo "hackbench failed"; fi
	done
	count hackbench $n
}

churn() { # TASKS SEED
	said=$(magpie-load churn --seconds "$seconds" --tasks "$1" --seed "$2" --with affinity,nice,policy,forks,stop) ||
		echo "churn failed: $said"
	echo "${said%(*}" | tr , '\n' | while read -r number what rest; do count "$what" "$number"; done
}

# All of these CPUs go offline, one after the other, and come back.
hotplug() { # CPUS
	n=0
	while :; do
		for cpu in $(echo "$1" | tr , ' '); do
			# The kernel refuses a CPU that deadline tasks need.
			echo 0 >/sys/devices/system/cpu/cpu$cpu/online 2>/dev/null && n=$((n + 1))
		done
		sleep 0.05
		for cpu in $(echo "$1" | tr , ' '); do
			echo 1 >/sys/devices/system/cpu/cpu$cpu/online
		done
		sleep 0.05
		over && break
	done
	count hotplug $n
}

# The cpuset of hogs and of hackbench changes. Then the tasks leave it, and it goes.
cpusets() { # HOGS CPUSETS
	group cpusets
	(
		echo 0 >/sys/fs/cgroup/cpusets/cgroup.procs
		hogs "$1"
		hackbench_again >/dev/null
		end_hogs
	) &
	n=0
	until over; do
		for cpus in $2; do
			# A set whose CPUs are all offline is refused or means the parent's.
			echo "$cpus" >/sys/fs/cgroup/cpusets/cpuset.cpus 2>/dev/null && n=$((n + 1))
			sleep 0.02
		done
	done
	count cpuset $n
	n=0
	while read -r pid; do
		echo "$pid" >/sys/fs/cgroup/cgroup.procs && n=$((n + 1))
	done </sys/fs/cgroup/cpusets/cgroup.procs 2>/dev/null
	count "moves of populated cgroups" $n
	wait
	rmdir /sys/fs/cgroup/cpusets
}

# Wait until a cgroup has a task: one that moves there after cgroup.kill would live on. 0: it has.
populated() { # GROUP
	for _ in $(seq 100); do
		grep -q . "/sys/fs/cgroup/$1/cgroup.procs" && return
		sleep 0.05
	done
	return 1
}

# cgroups with weights and limits come, nested, are filled, and are killed with what is in them.
cgroups() { # HOGS WEIGHTS LIMITS
	n=0
	until over; do
		for weight in $2; do
			for limit in $3; do
				group a
				echo +cpu >/sys/fs/cgroup/a/cgroup.subtree_control
				group a/b
				(echo 0 >/sys/fs/cgroup/a/b/cgroup.procs && hogs "$1" && wait) 2>/dev/null &
				echo "$weight" >/sys/fs/cgroup/a/cpu.weight
				echo "$limit 10000" >/sys/fs/cgroup/a/b/cpu.max
				sleep 0.05
				populated a/b && echo 1 >/sys/fs/cgroup/a/cgroup.kill && n=$((n + 1))
				wait
				until rmdir /sys/fs/cgroup/a/b /sys/fs/cgroup/a 2>/dev/null; do sleep 0.01; done
				over && break 2
			done
		done
	done
	count "killed cgroups" $n
}

freezer() { # HOGS
	group frozen
	(
		echo 0 >/sys/fs/cgroup/frozen/cgroup.procs && hogs "$1" && wait
	) 2>/dev/null &
	n=0
	populated frozen
	while :; do
		echo 1 >/sys/fs/cgroup/frozen/cgroup.freeze && n=$((n + 1))
		sleep 0.03
		echo 0 >/sys/fs/cgroup/frozen/cgroup.freeze
		sleep 0.03
		over && break
	done
	echo 1 >/sys/fs/cgroup/frozen/cgroup.kill
	wait
	until rmdir /sys/fs/cgroup/frozen 2>/dev/null; do sleep 0.01; done
	count freezes $n
}

# Clamps and nice values of running hogs change.
clamps() { # HOGS VALUES
	hogs "$1"
	n=0
	until over; do
		for value in $2; do
			for pid in $pids; do
				uclampset -m $((value / 2)) -M "$value" -p "$pid" >/dev/null && n=$((n + 1))
				renice -n $((value % 20)) -p "$pid" >/dev/null
			done
			sleep 0.01
		done
	done
	end_hogs
	count uclamp $n
}

# Real-time hogs hold these CPUs for moments. `timeout` is no real-time task, and not that of the shell.
# Their priority is below that of the kernel's thread that disables a scheduler, SCHED_FIFO 50: on the
# only CPU online a hog of 50 starves that thread. A `timeout` forked meanwhile is of the fair class,
# which has no deadline server then, so that hog starves it, too, and never ends.
realtime() { # CPUS
	n=0
	while :; do
		for cpu in $(echo "$1" | tr , ' '); do
			/bin/timeout 0.1 taskset -c "$cpu" chrt -f 49 magpie-load burn &
			pids="$pids $!"
		done 2>/dev/null
		end_of_timeouts
		sleep 0.02
		over && break
	done
	count "real-time hogs" $n
}

deadline() { # COUNT
	n=0
	until over; do
		for i in $(seq "$1"); do
			/bin/timeout 0.1 chrt -d --sched-runtime 2000000 --sched-deadline 8000000 --sched-period 8000000 0 \
				magpie-load burn 2>/dev/null &
			pids="$pids $!"
		done
		end_of_timeouts
	done
	count "deadline hogs" $n
}

# Programs that want more memory than their cgroup has, until the kernel kills them.
memory() {
	group memory
	echo 30M >/sys/fs/cgroup/memory/memory.max
	until over; do
		(echo 0 >/sys/fs/cgroup/memory/cgroup.procs && exec tail -n 1 /dev/zero) >/dev/null 2>&1
	done
	count "out-of-memory kills" "$(sed -n 's/^oom_kill //p' /sys/fs/cgroup/memory/memory.events)"
	until rmdir /sys/fs/cgroup/memory 2>/dev/null; do sleep 0.01; done
}

# The wall clock jumps an hour ahead and back.
clock() {
	n=0
	until over; do
		for offset in 3600 -3600; do
			date -s "@$(($(date +%s) + offset))" >/dev/null && n=$((n + 1))
			sleep 0.05
		done
	done
	count "clock jumps" $n
}

# So many tasks at once, as senders and receivers of a pipe: threads, which need the least memory.
crowd() { # TASKS
	n=0
	ulimit -n 50000
	until over; do
		if hackbench -T -g $(($1 / 40)) -l 2 >/dev/null; then n=$((n + $1)); else echo "hackbench failed"; fi
	done
	count "tasks of crowds" $n
}

# So many cgroups, a weight each; a hog moves through all of them, and they go.
many_cgroups() { # CGROUPS
	group many
	echo +cpu >/sys/fs/cgroup/many/cgroup.subtree_control
	hogs 1
	n=0
	while :; do
		(cd /sys/fs/cgroup/many && seq "$1" | xargs mkdir)
		for i in $(seq "$1"); do
			echo $((i % 10000 + 1)) >/sys/fs/cgroup/many/$i/cpu.weight
			echo $pids >/sys/fs/cgroup/many/$i/cgroup.procs && n=$((n + 1))
		done
		echo $pids >/sys/fs/cgroup/cgroup.procs
		(cd /sys/fs/cgroup/many && seq "$1" | xargs rmdir)
		over && break
	done
	end_hogs
	rmdir /sys/fs/cgroup/many
	count "moves through cgroups" $n
}

# A scene that hangs is one of which a file stays here.
rm -rf /tmp/running
mkdir /tmp/running
cd /tmp || exit 1
echo "+cpu +cpuset +memory" >/sys/fs/cgroup/cgroup.subtree_control
running=
for disturbance in "$@"; do
	pids=
	name=/tmp/running/${disturbance%% *}
	: >"$name"
	{ eval "$disturbance"; rm "$name"; } &
	running="$running $!"
done
magpie-load starvation --json --seconds "$seconds" $watch
code=$?
# Disturbances end in time; what they started may take a moment more.
wait $running
[ $code = 0 ] || echo "the watch ended with $code"
count "ms of scenes" $(($(uptime_ms) - began))
exit $code
