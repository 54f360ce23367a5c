//! All tests in virtual machines, as one program. So it is linked once, and the tests of all files
//! share one count of the host's free parts: small guests run two at once, and a test that measures
//! real time waits until no other guest runs.

mod bench_agreement;
mod bench_candidates;
mod bench_trial;
mod bench_verdicts;
mod lab_fuzz;
mod lab_guest;
mod lab_kernel;
mod lab_patched_code;
mod lab_scheduler;
mod lab_topology;
mod observe;
mod observe_top;
mod packages;
mod packages_loader;
mod power;
mod preferred_cpus;
mod preferred_estimate;
mod preferred_kernel;
mod preferred_overcommit;
mod scheduler_avg_idle;
mod scheduler_balance;
mod scheduler_bandwidth;
mod scheduler_cgroup;
mod scheduler_fairness;
mod scheduler_fork;
mod scheduler_frequency;
mod scheduler_move_cost;
mod scheduler_offer;
mod scheduler_preempt;
mod scheduler_push;
mod scheduler_queue;
mod scheduler_realtime;
mod scheduler_slice;
mod scheduler_start;
mod scheduler_steal;
mod scheduler_stranded;
mod scheduler_survival;
mod scheduler_throttled;
mod scheduler_wakeup;
mod trace;
mod vtime_guests;
mod vtime_host;
mod vtime_machine;
mod vtime_memory;
