//! Small models of what two or three CPUs do at the same time. Each is explored in every order of its
//! steps, and with every value that a memory read may return; one, which says so, in most orders.
//!
//! The steps are those of the BPF side, reduced to what the CPUs share; each part names its file. A
//! model is worth something only if it fails where a rule is missing, so each one is also explored
//! without the rule that it is about.
//!
//! Each model has only the barriers that its rule needs, [`full_barrier`], and says which lock of the
//! kernel each of them stands for; one, which says so, stands for none. A lock under which one thing
//! happens is one step.
//!
//! What the models do not do: run the BPF code, which the native and the VM tests do, or know of time.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;

fn full_barrier() {
    fence(SeqCst);
}

/// Returns whether an order of the steps was found in which the model's assertion does not hold.
fn fails(model: impl Fn() + Send + Sync + 'static) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loom::model(model))).is_err()
}

/// A queue of the kernel, for the one task of a model.
struct Queue(AtomicU32);

impl Queue {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn insert(&self) {
        self.0.swap(1, AcqRel);
    }

    fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    fn take(&self) -> bool {
        self.0.swap(0, AcqRel) == 1
    }
}

/// A line of portable/sparsemask.h.
struct Line(AtomicU64);

impl Line {
    fn set(&self, bit: u64) -> bool {
        self.0.load(Relaxed) & bit == 0 && self.0.fetch_or(bit, AcqRel) & bit == 0
    }

    fn clear(&self, bit: u64) -> bool {
        self.0.fetch_and(!bit, AcqRel) & bit != 0
    }
}

/// queue/overloaded.bpf.h and balance/steal.bpf.h: a waker queues a task on a busy CPU, whose bit was
/// left by an earlier one, and one or two thieves look for it. No tick of that CPU follows.
mod thieves {
    use super::*;

    const BIT: u64 = 1;

    struct Machine {
        overloaded: Line,
        queue: Queue,
        /// Tasks of the runqueue behind the running one, of whatever class that is.
        waiting: AtomicU32,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                overloaded: Line(AtomicU64::new(BIT)),
                queue: Queue::new(),
                waiting: AtomicU32::new(0),
            }
        }

        fn is_advertised(&self) -> bool {
            self.overloaded.0.load(Relaxed) & BIT != 0
        }

        fn is_waiting(&self) -> bool {
            self.waiting.load(Relaxed) > 0
        }
    }

    /// The rules of a thief that finds the queue empty.
    #[derive(Clone, Copy)]
    enum Rule {
        /// hide_empty_queue() of steal.bpf.h.
        ClearAndLook,
        LookAndClear,
        Clear,
    }

    /// The waker. The kernel counts the task before `ops.enqueue()`, which advertises it, and inserts
    /// it after that. No lock is behind this barrier, only hundreds of instructions between the count
    /// and the look at the bit: a CPU that delays the write for longer needs the tick.
    fn wake(machine: &Machine) {
        machine.waiting.store(1, Relaxed);
        full_barrier();
        machine.overloaded.set(BIT);
        machine.queue.insert();
    }

    fn steal(machine: &Machine, rule: Rule) {
        if !machine.is_advertised() {
            return;
        }
        if machine.queue.take() {
            machine.waiting.store(0, Relaxed);
            return;
        }
        if !matches!(rule, Rule::Clear) && machine.is_waiting() {
            return;
        }
        machine.overloaded.clear(BIT);
        // The locked instruction that cleared the bit.
        full_barrier();
        if matches!(rule, Rule::ClearAndLook) && machine.is_waiting() {
            machine.overloaded.set(BIT);
        }
    }

    fn model(nr_thieves: usize, rule: Rule) {
        let machine = Arc::new(Machine::new());
        let thieves: Vec<_> = (0..nr_thieves)
            .map(|_| {
                let machine = machine.clone();
                thread::spawn(move || steal(&machine, rule))
            })
            .collect();
        wake(&machine);
        for thief in thieves {
            thief.join().expect("a thief");
        }
        let waits = !machine.queue.is_empty();
        assert!(
            !waits || machine.is_advertised(),
            "a task waits, and no thief can see it"
        );
    }

    /// balance/push.bpf.h: the timer of a CPU that a real-time task has taken offers its queue, while
    /// a waker queues a task there. No tick of that CPU follows.
    fn model_of_timer(leaves_bit: bool) {
        let machine = Arc::new(Machine::new());
        let waker = {
            let machine = machine.clone();
            thread::spawn(move || {
                machine.overloaded.set(BIT);
                machine.queue.insert();
            })
        };
        if machine.queue.is_empty() {
            if !leaves_bit {
                machine.overloaded.clear(BIT);
            }
        } else {
            machine.overloaded.set(BIT);
        }
        waker.join().expect("a waker");
        let is_found = machine.overloaded.0.load(Relaxed) & BIT != 0;
        assert!(is_found, "a task waits, and no thief can see it");
    }

    #[test]
    fn a_task_behind_a_real_time_task_stays_advertised() {
        loom::model(|| model_of_timer(true));
    }

    #[test]
    fn a_timer_that_clears_the_bit_hides_a_task() {
        assert!(fails(|| model_of_timer(false)));
    }

    #[test]
    fn a_queued_task_is_taken_or_advertised() {
        loom::model(|| model(1, Rule::ClearAndLook));
    }

    /// Orders with at most five switches in the middle of a CPU's steps: to explore all of them took
    /// more than a minute.
    #[test]
    fn a_queued_task_is_taken_or_advertised_beside_two_thieves() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(5);
        builder.check(|| model(2, Rule::ClearAndLook));
    }

    #[test]
    fn a_thief_that_does_not_look_hides_a_task() {
        assert!(fails(|| model(1, Rule::Clear)));
    }

    #[test]
    fn a_thief_that_looks_only_before_it_clears_hides_a_task() {
        assert!(fails(|| model(1, Rule::LookAndClear)));
    }
}

/// portable/idle_map.h: the counts of idle CPUs. Of two CPUs of an LLC and one of another, all go
/// idle, and two have a tick while they are busy again.
mod idle_counts {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Count {
        /// Adds, and returns the value before; with two steps if `is_atomic` is false.
        fn add(&self, difference: u32, is_atomic: bool) -> u32 {
            if is_atomic {
                return self.0.fetch_add(difference, AcqRel);
            }
            let old = self.0.load(Relaxed);
            self.0.store(old.wrapping_add(difference), Relaxed);
            old
        }
    }

    struct Machine {
        lines: [Line; 2],
        cpus: [Count; 2],
        llcs: Count,
        is_atomic: bool,
    }

    impl Machine {
        fn set(&self, llc: usize, bit: u64) {
            if self.lines[llc].set(bit) && self.cpus[llc].add(1, self.is_atomic) == 0 {
                self.llcs.add(1, true);
            }
        }

        fn clear(&self, llc: usize, bit: u64) {
            let minus_one = 1_u32.wrapping_neg();
            if self.lines[llc].clear(bit) && self.cpus[llc].add(minus_one, self.is_atomic) == 1 {
                self.llcs.add(minus_one, true);
            }
        }
    }

    fn model(is_atomic: bool) {
        let machine = Arc::new(Machine {
            lines: [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))],
            cpus: Default::default(),
            llcs: Count::default(),
            is_atomic,
        });
        let others = [(0, 2), (1, 1)].map(|(llc, bit)| {
            let machine = machine.clone();
            thread::spawn(move || {
                machine.set(llc, bit);
                machine.clear(llc, bit);
            })
        });
        machine.set(0, 1);
        for cpu in others {
            cpu.join().expect("a CPU");
        }
        let counts = machine.cpus.each_ref().map(|count| count.0.load(Relaxed));
        assert_eq!((counts, machine.llcs.0.load(Relaxed)), ([1, 0], 1));
    }

    #[test]
    fn the_counts_are_those_of_the_bits() {
        loom::model(|| model(true));
    }

    #[test]
    fn counts_of_two_steps_go_wrong() {
        assert!(fails(|| model(false)));
    }
}

/// portable/idle_map.h and ops/run.bpf.h: two wakers claim an idle CPU, to which a real-time task
/// comes.
mod claim {
    use super::*;

    const NOT: u64 = 0;
    const FREE: u64 = 1;
    const CLAIMED: u64 = 4;

    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        All,
        /// A waker claims with a store.
        NoCompare,
        /// The CPU reads its word and then writes it.
        NoExchange,
    }

    /// A waker; whether it sends its task.
    fn claim(word: &AtomicU64, time: u64, rule: Rule) -> bool {
        if word.load(Relaxed) != FREE {
            return false;
        }
        if rule == Rule::NoCompare {
            word.store(time, Relaxed);
            return true;
        }
        word.compare_exchange(FREE, time, AcqRel, Relaxed).is_ok()
    }

    /// The CPU leaves idle for another class; whether it knows of a task that is on its way.
    fn leave_idle(word: &AtomicU64, rule: Rule) -> bool {
        let old = match rule {
            Rule::NoExchange => {
                let old = word.load(Relaxed);
                word.store(NOT, Relaxed);
                old
            }
            _ => word.swap(NOT, AcqRel),
        };
        old >= CLAIMED
    }

    /// Two wakers that find the same CPU; each returns whether it sends its task.
    fn start_wakers(word: &Arc<AtomicU64>, rule: Rule) -> [thread::JoinHandle<bool>; 2] {
        [CLAIMED, CLAIMED + 1].map(|time| {
            let word = word.clone();
            thread::spawn(move || claim(&word, time, rule))
        })
    }

    fn model(rule: Rule) {
        let word = Arc::new(AtomicU64::new(FREE));
        let wakers = start_wakers(&word, rule);
        let knows = leave_idle(&word, rule);
        let sent = wakers.map(|waker| waker.join().expect("a waker"));
        let sent = sent.into_iter().filter(|sent| *sent).count();
        assert!(sent <= 1, "two tasks are sent to one idle CPU");
        assert_eq!(sent == 1, knows, "a task arrives, and the CPU expects none");
    }

    /// A kicked CPU finds no work and idles on, while two wakers look for an idle CPU. Nobody has
    /// claimed it to search, so a claim is a waker's.
    fn model_of_search(keeps_claim: bool) {
        let word = Arc::new(AtomicU64::new(FREE));
        let wakers = start_wakers(&word, Rule::All);
        let cpu = thread::spawn(move || {
            let now = word.load(Relaxed);
            if now != FREE && !(keeps_claim && now >= CLAIMED) {
                word.store(FREE, Relaxed);
            }
        });
        cpu.join().expect("the CPU");
        let sent = wakers.map(|waker| waker.join().expect("a waker"));
        assert_ne!(sent, [true, true], "two tasks are sent to one idle CPU");
    }

    #[test]
    fn a_search_leaves_a_claim_of_a_waker() {
        loom::model(|| model_of_search(true));
    }

    #[test]
    fn a_search_that_ends_a_claim_sends_two() {
        assert!(fails(|| model_of_search(false)));
    }

    #[test]
    fn one_task_is_sent_and_the_cpu_knows() {
        loom::model(|| model(Rule::All));
    }

    #[test]
    fn a_claim_without_a_comparison_sends_two() {
        assert!(fails(|| model(Rule::NoCompare)));
    }

    #[test]
    fn a_cpu_without_an_exchange_misses_a_claim() {
        assert!(fails(|| model(Rule::NoExchange)));
    }
}

/// cgroup/parking.bpf.h and cgroup/bandwidth.bpf.h: the timer of a cgroup looks for late tasks a last
/// time, while one CPU uses up the budget, and another one parks its task if that throttles it.
mod parking {
    use loom::sync::atomic::AtomicI64;

    use super::*;

    /// When the timer expires.
    const NEVER: u32 = 0;
    const PERIOD_END: u32 = 1;
    /// After LAST_LOOK_NS, 10 s.
    const LONG_AFTER: u32 = 2;

    struct Cgroup {
        budget: AtomicI64,
        throttled: AtomicU32,
        parked: Queue,
        timer: AtomicU32,
    }

    impl Cgroup {
        /// bpf_timer_start(): under the lock of the timer, and the last start counts.
        fn start_timer(&self, expires: u32) {
            self.timer.swap(expires, AcqRel);
        }

        fn is_throttled(&self) -> bool {
            self.throttled.load(Relaxed) != 0
        }
    }

    /// consume_budget() and throttle().
    fn consume(cgroup: &Cgroup, used: i64) {
        let left = cgroup.budget.fetch_sub(used, AcqRel) - used;
        if left <= 0 && cgroup.throttled.swap(1, AcqRel) == 0 {
            cgroup.start_timer(PERIOD_END);
        }
    }

    /// The last look of end_bandwidth_period() after a release. `checks`: it asks whether the cgroup
    /// was throttled again after it has started the timer.
    fn look(cgroup: &Cgroup, checks: bool) {
        let is_over = cgroup.budget.load(Relaxed) > 0;
        if is_over {
            let unthrottles = cgroup.throttled.swap(0, AcqRel) == 1;
            cgroup.parked.take();
            // After a release it looks again sooner, three times.
            cgroup.start_timer(if unthrottles { PERIOD_END } else { LONG_AFTER });
        }
        if !is_over || (checks && cgroup.is_throttled()) {
            cgroup.start_timer(PERIOD_END);
        }
    }

    fn model(checks: bool) {
        let cgroup = Arc::new(Cgroup {
            budget: AtomicI64::new(1),
            throttled: AtomicU32::new(0),
            parked: Queue::new(),
            timer: AtomicU32::new(NEVER),
        });
        let consumer = {
            let cgroup = cgroup.clone();
            thread::spawn(move || consume(&cgroup, 1))
        };
        let parker = {
            let cgroup = cgroup.clone();
            thread::spawn(move || {
                if cgroup.is_throttled() {
                    cgroup.parked.insert();
                }
            })
        };
        look(&cgroup, checks);
        consumer.join().expect("a CPU");
        parker.join().expect("a CPU");
        let waits = cgroup.is_throttled() || !cgroup.parked.is_empty();
        let expires = cgroup.timer.load(Relaxed);
        assert!(!waits || expires == PERIOD_END, "tasks wait for 10 s");
    }

    #[test]
    fn a_throttled_cgroup_is_looked_after_when_its_period_ends() {
        loom::model(|| model(true));
    }

    #[test]
    fn a_look_that_does_not_ask_again_lets_its_tasks_wait() {
        assert!(fails(|| model(false)));
    }
}

/// guest/monitor.bpf.h and guest/preferred.bpf.h: a task is sent to a preferred CPU that goes offline
/// at that moment.
mod governor {
    use super::*;

    struct Machine {
        is_usable: AtomicU32,
        queue: Queue,
        rescued: AtomicU32,
    }

    /// redirect() and queue_elsewhere().
    fn redirect(machine: &Machine) {
        if machine.is_usable.load(Relaxed) != 0 {
            machine.queue.insert();
        } else {
            machine.rescued.fetch_add(1, AcqRel);
        }
    }

    /// `ops.cpu_offline()`: empties the queue of the CPU.
    fn go_offline(machine: &Machine) {
        machine.is_usable.store(0, Relaxed);
        take_all(machine);
    }

    /// rescue_redirected(), in each period of the governor.
    fn rescue(machine: &Machine) {
        if machine.is_usable.load(Relaxed) == 0 {
            take_all(machine);
        }
    }

    fn take_all(machine: &Machine) {
        if machine.queue.take() {
            machine.rescued.fetch_add(1, AcqRel);
        }
    }

    fn model(has_next_period: bool) {
        let machine = Arc::new(Machine {
            is_usable: AtomicU32::new(1),
            queue: Queue::new(),
            rescued: AtomicU32::new(0),
        });
        let waker = {
            let machine = machine.clone();
            thread::spawn(move || redirect(&machine))
        };
        let hotplug = {
            let machine = machine.clone();
            thread::spawn(move || go_offline(&machine))
        };
        rescue(&machine);
        waker.join().expect("a waker");
        hotplug.join().expect("the hotplug");
        if has_next_period {
            rescue(&machine);
        }
        let rescued = machine.rescued.load(Relaxed);
        assert_eq!(rescued, 1, "a task stays in the queue of an offline CPU");
    }

    #[test]
    fn a_redirected_task_runs_by_the_next_period() {
        loom::model(|| model(true));
    }

    #[test]
    fn without_the_next_period_one_may_stay() {
        assert!(fails(|| model(false)));
    }
}
