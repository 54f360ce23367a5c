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
    /// The time, which only claims compare.
    pub now: u64,
    /// CPU on which the task slept.
    pub previous: u32,
    /// The one before that, or [`NO_CPU`].
    pub recent: u32,
    /// From where it is woken.
    pub waker: u32,
    /// CPUs that a search looks at, unless it is for an idle core.
    pub looks: u32,
    /// The waker says that it sleeps next.
    pub is_sync: bool,
    /// Whole idle cores first.
    pub wants_core: bool,
    /// Fast CPUs first.
    pub wants_fast: bool,
    /// Also in other LLCs.
    pub may_go_far: bool,
    /// There for an idle core, rather than share one at home.
    pub core_is_worth_it: bool,
    /// Beside a waker that is about to sleep.
    pub outlasts_waker: bool,
    /// CPUs that run SCHED_IDLE tasks count as idle.
    pub may_preempt: bool,
    /// Only what is all that is wanted.
    pub only_perfect: bool,
    /// The result of the search.
    pub cpu: u32,
    /// The CPU that was idle but not perfect, or `NO_CPU`.
    pub second_best: u32,
    /// Whether the found CPU runs a SCHED_IDLE task.
    pub preempts: bool,
}

impl Wakeup {
    /// As the scheduler asks for a task that slept on `previous`, woken from `waker`.
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
    safe fn magpie_llc_by_distance(llc: u32, i: u32, first: u32, nr: u32, all: u32) -> u32;
}

impl Machine {
    /// Nodes, LLCs of a node, cores of an LLC, threads of a core: at most 64 CPUs.
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
            nodes,
            llcs,
            cores,
            threads,
            nr_llcs_idle: 0,
            waker_leaves: false,
        }
    }

    /// CPUs there are.
    pub fn cpus(&self) -> u32 {
        self.nodes * self.llcs * self.cores * self.threads
    }

    /// Sets what a CPU does now, and its bit as a tick then leaves it.
    pub fn set(&mut self, cpus: impl IntoIterator<Item = u32>, now: Cpu) {
        for cpu in cpus {
            self.words[cpu as usize] = now as u64;
            let is_idle = matches!(now, Cpu::Free | Cpu::IdlePolicy);
            self.set_bit(cpu, is_idle);
            let llc = cpu / (self.cores * self.threads);
            self.counts[llc as usize].may_have_core |= u32::from(is_idle);
        }
    }

    /// A CPU runs a task since less than a tick: its bit is still set.
    pub fn wake(&mut self, cpu: u32) {
        self.words[cpu as usize] = Cpu::Busy as u64;
    }

    /// Sets a CPU's bit; how many writes to shared lines that took.
    pub fn set_bit(&mut self, cpu: u32, is_set: bool) -> u32 {
        assert!(cpu < self.cpus());
        // SAFETY: a valid machine, kept by nobody after the call, and one of its CPUs.
        unsafe { magpie_set_bit(self, cpu, is_set) }
    }

    /// Whether a search for an idle core looks at more than a few CPUs of an LLC.
    pub fn may_have_idle_core(&self, llc: u32) -> bool {
        self.counts[llc as usize].may_have_core != 0
    }

    /// Bits set in an LLC.
    pub fn idle_cpus(&self, llc: u32) -> u32 {
        self.counts[llc as usize].cpus
    }

    /// LLCs with any bit set.
    pub fn idle_llcs(&self) -> u32 {
        self.nr_llcs_idle
    }

    /// Looks for a CPU and claims it; the step that found it, and the CPU.
    pub fn choose(&mut self, allowed: u64, at: &mut Wakeup) -> (Step, u32) {
        // SAFETY: all three are valid and kept by nobody after the call; the task is one word.
        let step = unsafe { magpie_choose_cpu(self, &allowed, at) };
        (STEPS[step as usize], at.cpu)
    }
}

/// The other LLCs as seen from one, nearest first; `node` are those of its node.
pub fn others_by_distance(llc: u32, node: Range<u32>, all: u32) -> Vec<u32> {
    let nr = node.end - node.start;
    (1..all)
        .map(|i| magpie_llc_by_distance(llc, i, node.start, nr, all))
        .collect()
}
