//! Where a woken task runs: `placement.h`, `idle_map.h` and `llc_order.h` on made-up machines.

use std::ops::Range;

/// `NO_CPU`.
pub const NO_CPU: u32 = u32::MAX;

/// A time, for claims; nothing here lasts.
const NOW: u64 = 1_000_000_000;

/// `enum wakeup_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Step {
    Previous,
    Recent,
    Waker,
    IdleCore,
    IdleCpu,
    Beyond,
    Queue,
}

const STEPS: [Step; 7] = [
    Step::Previous,
    Step::Recent,
    Step::Waker,
    Step::IdleCore,
    Step::IdleCpu,
    Step::Beyond,
    Step::Queue,
];

/// The state of a CPU; `enum idle_word`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Cpu {
    /// Runs a task.
    Busy,
    /// Idles.
    Free,
    /// Is offline.
    Offline,
    /// Runs a task of SCHED_IDLE.
    IdlePolicy,
}

/// A wakeup; `struct placement`.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Wakeup {
    /// The time of the wakeup, with which claims are compared.
    pub now: u64,
    /// The CPU on which the task ran last.
    pub previous: u32,
    /// The CPU before the previous one, or [`NO_CPU`].
    pub recent: u32,
    /// The CPU of the waker.
    pub waker: u32,
    /// How many CPUs a search of one LLC looks at, unless the search is for an idle core.
    pub looks: u32,
    /// The wakeup is a sync one: the waker says that it will sleep soon.
    pub is_sync: bool,
    /// Idle cores come before idle CPUs.
    pub wants_core: bool,
    /// Fast CPUs come before slow ones.
    pub wants_fast: bool,
    /// The search goes on in other LLCs.
    pub may_go_far: bool,
    /// An idle core in another LLC is better than a shared core in the own LLC.
    pub core_is_worth_it: bool,
    /// The task may share the core of a waker that will sleep soon.
    pub outlasts_waker: bool,
    /// A CPU that runs a SCHED_IDLE task counts as idle.
    pub may_preempt: bool,
    /// State of the search: do not take the second best CPU.
    pub only_perfect: bool,
    /// The CPU that the search found.
    pub cpu: u32,
    /// The CPU that was idle but not perfect, or `NO_CPU`.
    pub second_best: u32,
    /// Whether the found CPU runs a SCHED_IDLE task.
    pub preempts: bool,
}

impl Wakeup {
    /// Returns the wakeup of a task that ran last on `previous`, by a task on `waker`, as the
    /// scheduler searches for one with short bursts that may move to another LLC.
    pub fn new(previous: u32, waker: u32) -> Wakeup {
        Wakeup {
            now: NOW,
            previous,
            recent: NO_CPU,
            waker,
            looks: 64,
            is_sync: false,
            wants_core: true,
            wants_fast: false,
            may_go_far: true,
            core_is_worth_it: false,
            outlasts_waker: false,
            may_preempt: true,
            only_perfect: false,
            cpu: NO_CPU,
            second_best: NO_CPU,
            preempts: false,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(u64);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Count {
    cpus: u32,
    may_have_core: u32,
}

/// A machine of nodes, LLCs, cores and threads, all of one size; all CPUs busy at first.
#[derive(Clone)]
#[repr(C)]
pub struct Machine {
    lines: [Line; 64],
    counts: [Count; 64],
    words: [u64; 64],
    /// CPUs of low capacity, a bit each.
    pub slow: u64,
    /// CPUs that were asked whether they idle, a bit each.
    pub called: u64,
    nodes: u32,
    llcs: u32,
    cores: u32,
    threads: u32,
    nr_llcs_idle: u32,
    /// Whether the waker leaves its CPU.
    pub waker_leaves: bool,
}

unsafe extern "C" {
    fn magpie_set_bit(machine: *mut Machine, cpu: u32, is_set: bool) -> u32;
    fn magpie_choose_cpu(machine: *mut Machine, allowed: *const u64, at: *mut Wakeup) -> i32;
    safe fn magpie_is_late(machine: &Machine, cpu: u32, now: u64) -> bool;
    safe fn magpie_idle_on(machine: &mut Machine, cpu: u32, claimed_to_search: bool, now: u64);
    safe fn magpie_llc_by_distance(llc: u32, i: u32, first: u32, nr: u32, all: u32) -> u32;
}

impl Machine {
    /// Makes a machine of so many nodes, LLCs per node, cores per LLC and threads per core; at most
    /// 64 CPUs.
    pub fn new(nodes: u32, llcs: u32, cores: u32, threads: u32) -> Machine {
        assert!((1..=64).contains(&(nodes * llcs * cores * threads)));
        Machine {
            lines: [Line(0); 64],
            counts: [Count {
                cpus: 0,
                may_have_core: 0,
            }; 64],
            words: [Cpu::Busy as u64; 64],
            slow: 0,
            called: 0,
            nodes,
            llcs,
            cores,
            threads,
            nr_llcs_idle: 0,
            waker_leaves: false,
        }
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.nodes * self.llcs * self.cores * self.threads
    }

    /// Sets the state of CPUs, and their bits as they are after the next tick.
    pub fn set(&mut self, cpus: impl IntoIterator<Item = u32>, now: Cpu) {
        for cpu in cpus {
            self.words[cpu as usize] = now as u64;
            let is_idle = matches!(now, Cpu::Free | Cpu::IdlePolicy);
            self.set_bit(cpu, is_idle);
            let llc = cpu / (self.cores * self.threads);
            self.counts[llc as usize].may_have_core |= u32::from(is_idle);
        }
    }

    /// Lets a CPU run a task since less than a tick: its bit is still set.
    pub fn wake(&mut self, cpu: u32) {
        self.words[cpu as usize] = Cpu::Busy as u64;
    }

    /// Sets or clears a CPU's bit, and returns the number of writes to shared lines.
    pub fn set_bit(&mut self, cpu: u32, is_set: bool) -> u32 {
        assert!(cpu < self.cpus());
        // SAFETY: a valid machine, kept by nobody after the call, and one of its CPUs.
        unsafe { magpie_set_bit(self, cpu, is_set) }
    }

    /// Returns whether a search in an LLC looks for an idle core.
    pub fn may_have_idle_core(&self, llc: u32) -> bool {
        self.counts[llc as usize].may_have_core != 0
    }

    /// The number of bits that are set in an LLC.
    pub fn idle_cpus(&self, llc: u32) -> u32 {
        self.counts[llc as usize].cpus
    }

    /// The number of LLCs with any bit set.
    pub fn idle_llcs(&self) -> u32 {
        self.nr_llcs_idle
    }

    /// Returns whether a CPU was claimed and has not come.
    pub fn is_late(&self, cpu: u32, now: u64) -> bool {
        magpie_is_late(self, cpu, now)
    }

    /// Lets an idle CPU search for work and find none, at a time in nanoseconds. Somebody may have
    /// claimed it for that.
    pub fn search_in_vain(&mut self, cpu: u32, claimed_to_search: bool, now: u64) {
        assert!(cpu < self.cpus());
        magpie_idle_on(self, cpu, claimed_to_search, now);
    }

    /// Searches for a CPU and claims it. Returns the step that found the CPU, and the CPU.
    pub fn choose(&mut self, allowed: u64, at: &mut Wakeup) -> (Step, u32) {
        // SAFETY: all three are valid and kept by nobody after the call; the task is one word.
        let step = unsafe { magpie_choose_cpu(self, &allowed, at) };
        (STEPS[step as usize], at.cpu)
    }
}

/// Returns the other LLCs as seen from `llc`, nearest first. `node`: the LLCs of its node.
pub fn others_by_distance(llc: u32, node: Range<u32>, all: u32) -> Vec<u32> {
    let nr = node.end - node.start;
    (1..all)
        .map(|i| magpie_llc_by_distance(llc, i, node.start, nr, all))
        .collect()
}
