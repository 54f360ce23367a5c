//! `fair.h`: lag stays bounded, deadlines are in order, nothing overflows, and shares follow
//! weights over any sequence of run, sleep, move and change of weight.
//!
//! The last is shown on simulated CPUs. The simulation decides who runs and sleeps when; every
//! vruntime, clock, lag and deadline in it comes from the C functions, which run with the sanitizer
//! for undefined behaviour.

use magpie_native::arithmetic::{virtual_time, weight_of_nice, weight_to_rate};
use magpie_native::fair::{
    charge_with_catch_up, clamp_lag, is_before, lag_after_move, lag_after_sleep, lag_to_catch_up,
    largest_debt, largest_lag, later_of, request_of,
};
use proptest::prelude::*;

const SLICE: u64 = 3_000_000;

/// The CPU time without a sleep from which on a task counts as CPU-bound: 16 ticks of 4 ms.
const HOG: u64 = 64_000_000;

/// Lags are differences of virtual times less than 146 years apart.
const LARGEST: i64 = 1 << 62;

fn rates() -> impl Strategy<Value = u64> {
    (-20..=19).prop_map(|nice| weight_to_rate(weight_of_nice(nice)))
}

fn slices() -> impl Strategy<Value = u64> {
    prop_oneof![Just(SLICE), 100_000..=1_000_000_000u64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn virtual_times_are_ordered_across_the_wrap(time in any::<u64>(), ahead in 1..i64::MAX as u64) {
        let later = time.wrapping_add(ahead);
        prop_assert!(is_before(time, later) && !is_before(later, time) && !is_before(time, time));
        prop_assert_eq!(later_of(time, later), later);
        prop_assert_eq!(later_of(later, time), later);
    }

    #[test]
    fn lag_stays_within_its_bounds(
        lag in -LARGEST..LARGEST, lead in any::<i64>(), slice in slices(), rate in rates(),
    ) {
        let slept = lag_after_sleep(lag, slice, rate);
        let most = 0;
        let least = -2 * virtual_time(slice, rate) as i64;
        prop_assert!((least..=most).contains(&slept), "{slept}");
        prop_assert_eq!(slept, lag.clamp(least, most));

        let moved = lag_after_move(lag, lead);
        prop_assert!((-largest_debt()..=largest_lag()).contains(&moved), "{moved}");
        prop_assert_eq!(clamp_lag(lag, least, most), lag.clamp(least, most));
    }

    /// Two CPUs whose clocks agree: a move neither gives nor takes anything.
    #[test]
    fn a_move_keeps_the_lag(lag in -1_000_000_000i64..=50_000_000, slice in slices(), rate in rates()) {
        prop_assert_eq!(lag_after_move(lag, 0), lag);
        let later = lag_to_catch_up(lag, slice, rate) as i64;
        prop_assert!(later >= 0 && lag - later <= virtual_time(slice, rate) as i64);
    }

    #[test]
    fn a_request_is_a_slice_or_two_and_never_more_than_real_time(
        slice in slices(), rate in rates(),
    ) {
        for (is_cpu_bound, slices) in [(false, 1), (true, 2)] {
            let span = slices * slice;
            let request = request_of(slice, is_cpu_bound, rate);
            prop_assert_eq!(request, virtual_time(span, rate).min(span));
        }
    }

    /// All of what a task may catch up comes back, at no more than half of its time.
    #[test]
    fn what_is_to_be_caught_up_is_given_back_in_full(
        total in 0..100_000_000u64, spans in prop::collection::vec(0..5_000_000u64, 1..200),
    ) {
        let mut left = total;
        let mut given = 0;
        for &span in &spans {
            let charged = charge_with_catch_up(span, &mut left);
            prop_assert!(charged <= span && span - charged <= span / 2);
            given += span - charged;
        }
        prop_assert_eq!(given + left, total);
    }
}

/// A task of the simulation: what `struct task_state` has of it.
#[derive(Clone, Debug)]
struct Task {
    vruntime: u64,
    catch_up: u64,
    rate: u64,
    cpu: usize,
    runnable: bool,
    /// CPU time since it last slept.
    burst: u64,
    /// CPU time, and what it should have been: the integral of its share.
    ran: f64,
    due: f64,
}

/// One step of the simulation.
#[derive(Clone, Debug)]
enum Step {
    /// The earliest deadline of a CPU runs for this long, at most a slice.
    Run(usize, u64),
    /// A task sleeps for this many steps.
    Sleep(usize),
    Wake(usize),
    Move(usize, usize),
    Weight(usize, i32),
}

struct Machine {
    clocks: Vec<u64>,
    tasks: Vec<Task>,
}

impl Machine {
    fn new(cpus: usize, nices: &[i32], start: u64) -> Self {
        let tasks = nices
            .iter()
            .enumerate()
            .map(|(i, &nice)| Task {
                vruntime: start,
                catch_up: 0,
                rate: weight_to_rate(weight_of_nice(nice)),
                cpu: i % cpus,
                runnable: true,
                burst: 0,
                ran: 0.0,
                due: 0.0,
            })
            .collect();
        let clocks = vec![start; cpus];
        Machine { clocks, tasks }
    }

    fn lag(&self, task: usize) -> i64 {
        let task = &self.tasks[task];
        self.clocks[task.cpu].wrapping_sub(task.vruntime) as i64
    }

    fn deadline(&self, task: usize) -> u64 {
        let task = &self.tasks[task];
        let is_cpu_bound = task.burst >= HOG;
        let request = request_of(SLICE, is_cpu_bound, task.rate);
        task.vruntime.wrapping_add(request)
    }

    fn queued(&self, cpu: usize) -> Vec<usize> {
        (0..self.tasks.len())
            .filter(|&i| self.tasks[i].cpu == cpu && self.tasks[i].runnable)
            .collect()
    }

    /// The earliest deadline; no other queued task's is before it.
    fn first(&self, cpu: usize) -> Option<usize> {
        let queued = self.queued(cpu);
        let first = queued.iter().copied().reduce(|a, b| {
            if is_before(self.deadline(b), self.deadline(a)) {
                b
            } else {
                a
            }
        })?;
        for other in queued {
            assert!(!is_before(self.deadline(other), self.deadline(first)));
        }
        Some(first)
    }

    fn join(&mut self, task: usize, cpu: usize, lag: i64) {
        self.tasks[task].vruntime = self.clocks[cpu].wrapping_sub(lag as u64);
        self.tasks[task].cpu = cpu;
    }

    fn step(&mut self, step: &Step) {
        let nr = self.tasks.len();
        match *step {
            Step::Run(cpu, ns) => {
                let cpu = cpu % self.clocks.len();
                let Some(first) = self.first(cpu) else { return };
                let queued = self.queued(cpu);
                let weight = |i: &usize| 1.0 / self.tasks[*i].rate as f64;
                let sum: f64 = queued.iter().map(weight).sum();
                for (i, share) in queued
                    .iter()
                    .map(|i| (*i, weight(i) / sum))
                    .collect::<Vec<_>>()
                {
                    self.tasks[i].due += share * ns as f64;
                }
                let clock = &mut self.clocks[cpu];
                let task = &mut self.tasks[first];
                *clock = later_of(*clock, task.vruntime);
                let used = virtual_time(ns, task.rate);
                let charged = charge_with_catch_up(used, &mut task.catch_up);
                task.vruntime = task.vruntime.wrapping_add(charged);
                task.burst += ns;
                task.ran += ns as f64;
            }
            Step::Sleep(i) => self.tasks[i % nr].runnable = false,
            Step::Wake(i) => {
                let i = i % nr;
                if !self.tasks[i].runnable {
                    let lag = lag_after_sleep(self.lag(i), SLICE, self.tasks[i].rate);
                    let cpu = self.tasks[i].cpu;
                    self.tasks[i].catch_up = 0;
                    self.tasks[i].burst = 0;
                    self.join(i, cpu, lag);
                    self.tasks[i].runnable = true;
                }
            }
            Step::Move(i, to) => {
                let (i, to) = (i % nr, to % self.clocks.len());
                if !self.tasks[i].runnable || self.tasks[i].cpu == to {
                    return;
                }
                let lag = self.lag(i) + self.tasks[i].catch_up as i64;
                let lag = lag_after_move(lag, 0);
                let rate = self.tasks[i].rate;
                self.tasks[i].catch_up = lag_to_catch_up(lag, SLICE, rate);
                let later = self.tasks[i].catch_up as i64;
                self.join(i, to, lag - later);
            }
            Step::Weight(i, nice) => {
                self.tasks[i % nr].rate = weight_to_rate(weight_of_nice(nice));
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..4usize, 10_000..=SLICE).prop_map(|(cpu, ns)| Step::Run(cpu, ns)),
        2 => (0..8usize).prop_map(Step::Sleep),
        3 => (0..8usize).prop_map(Step::Wake),
        1 => (0..8usize, 0..4usize).prop_map(|(i, to)| Step::Move(i, to)),
        1 => (0..8usize, -5..=5i32).prop_map(|(i, nice)| Step::Weight(i, nice)),
    ];
    prop::collection::vec(step, 100..2000)
}

/// The largest debt of a task of nice -5..=5 while it waits: it ran for a slice, or it woke with
/// the largest debt that a sleep keeps.
fn largest_ahead() -> i64 {
    2 * virtual_time(SLICE, weight_to_rate(weight_of_nice(5))) as i64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A queued task's debt is within its bound. Its positive lag is at most what it kept at a
    /// move, and what it gained while a queue of eight tasks made it wait.
    #[test]
    fn lag_is_bounded_over_any_sequence(steps in steps(), start in any::<u64>()) {
        let mut machine = Machine::new(4, &[0, -5, 5, 0, 3, -3, 0, 1], start);
        for step in &steps {
            machine.step(step);
            for i in 0..machine.tasks.len() {
                if machine.tasks[i].runnable {
                    let lag = machine.lag(i);
                    let debt = largest_ahead() + SLICE as i64;
                    prop_assert!((-debt..=largest_lag() + 3 * SLICE as i64).contains(&lag), "{i}: {lag}");
                }
            }
        }
    }

    /// Hogs of one CPU, for a thousand slices: each gets what its weight says, to within 4 slices.
    /// A change of weight may add 10 slices: lag is virtual time, and the weights differ by up to
    /// 9.
    #[test]
    fn shares_follow_weights(
        nices in prop::collection::vec(-5..=5i32, 2..6),
        spans in prop::collection::vec((10_000..=SLICE, 0..40u8, 0..6usize, -5..=5i32), 1000..3000),
        start in any::<u64>(),
    ) {
        let mut machine = Machine::new(1, &nices, start);
        let mut changes = 0;
        for &(ns, dice, task, nice) in &spans {
            if dice == 0 && changes < 4 {
                machine.step(&Step::Weight(task, nice));
                changes += 1;
            }
            machine.step(&Step::Run(0, ns));
        }
        for task in &machine.tasks {
            let bound = ((4 + 10 * changes) * SLICE) as f64;
            prop_assert!((task.ran - task.due).abs() <= bound, "{task:?}");
        }
    }

    /// The same on two CPUs, where tasks also sleep, wake and migrate: no task gets more than what
    /// its weight says of the time in which it is runnable, to within 4 slices, and 10 for each
    /// such event. A task that never slept gets no less either; one that slept lost its lag.
    #[test]
    fn shares_follow_weights_over_sleeps_and_moves(
        nices in prop::collection::vec(-5..=5i32, 4..8),
        spans in prop::collection::vec((10_000..=SLICE, 0..200u8, 0..8usize, -5..=5i32), 2000..4000),
        start in any::<u64>(),
    ) {
        let mut machine = Machine::new(2, &nices, start);
        let mut slept = vec![false; nices.len()];
        let mut events = 0;
        for &(ns, dice, task, nice) in &spans {
            let task = task % nices.len();
            let is_runnable = machine.tasks[task].runnable;
            let event = match dice {
                0 => Some(Step::Weight(task, nice)),
                1 => Some(Step::Move(task, 1 - machine.tasks[task].cpu)),
                2 if is_runnable => Some(Step::Sleep(task)),
                2 => Some(Step::Wake(task)),
                _ => None,
            };
            if let Some(event) = event.filter(|_| events < 6) {
                slept[task] |= matches!(event, Step::Sleep(_));
                machine.step(&event);
                events += 1;
            }
            machine.step(&Step::Run(0, ns));
            machine.step(&Step::Run(1, ns));
        }
        let bound = ((4 + 10 * events) * SLICE) as f64;
        for (task, slept) in machine.tasks.iter().zip(slept) {
            prop_assert!(task.ran <= task.due + bound, "{task:?}");
            prop_assert!(slept || task.ran >= task.due - bound, "{task:?}");
        }
    }

    /// A sleeper on a CPU with a hog: however it sleeps, it never has more than its half.
    #[test]
    fn nobody_gains_by_sleeping(
        turns in prop::collection::vec((10_000..=SLICE, any::<bool>()), 500..2000),
        start in any::<u64>(),
    ) {
        let mut machine = Machine::new(1, &[0, 0], start);
        for &(ns, sleeps) in &turns {
            machine.step(&Step::Run(0, ns));
            if sleeps {
                machine.step(&Step::Sleep(0));
                machine.step(&Step::Run(0, 10_000));
                machine.step(&Step::Wake(0));
            }
        }
        let [sleeper, hog] = &machine.tasks[..] else { unreachable!() };
        prop_assert!(sleeper.ran <= hog.ran + 4.0 * SLICE as f64, "{sleeper:?} {hog:?}");
    }

    /// A task that uses less than its share, in short bursts beside hogs: whenever it wakes, it is
    /// due before the hog that runs, whose deadline counts from the clock.
    #[test]
    fn a_task_below_its_share_is_due_before_hogs(
        hogs in 1..=2usize,
        turns in prop::collection::vec((10_000..=SLICE / 2, 3..20u64), 20..200),
        start in any::<u64>(),
    ) {
        let mut machine = Machine::new(1, &vec![0; hogs + 1], start);
        machine.step(&Step::Sleep(0));
        for _ in 0..hogs as u64 * HOG.div_ceil(SLICE) {
            machine.step(&Step::Run(0, SLICE));
        }
        for &(burst, times) in &turns {
            machine.step(&Step::Wake(0));
            let hog = request_of(SLICE, true, machine.tasks[1].rate);
            prop_assert!(is_before(machine.deadline(0), machine.clocks[0].wrapping_add(hog)));
            prop_assert_eq!(machine.first(0), Some(0));
            machine.step(&Step::Run(0, burst));
            machine.step(&Step::Sleep(0));
            for _ in 0..times {
                machine.step(&Step::Run(0, burst));
            }
        }
    }
}
