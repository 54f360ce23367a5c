//! Which functions of a running scx_magpie the BPF side attaches to.
//!
//! The scheduler's operations are BPF programs, each with its own copy of the functions that it
//! calls. A function is named by its operation, whose name the kernel cuts, and its own name, which
//! is in the BTF of the scheduler.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libbpf_rs::btf::{Btf, types};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{OpenObject, Program, ProgramType};

use crate::kernel::SchedExt;

/// Our program, the operation, and the function that the program attaches to.
const HOOKS: [(&str, &str, &str); 11] = [
    ("after_take", "magpie_select_cpu", "take"),
    ("after_visit_idle", "magpie_select_cpu", "visit_idle"),
    ("after_search_idle", "magpie_select_cpu", "search_idle"),
    ("after_select_cpu", "magpie_select_cpu", "magpie_select_cpu"),
    ("before_dispatch", "magpie_dispatch", "magpie_dispatch"),
    (
        "before_find_busier_llc",
        "magpie_dispatch",
        "find_busier_llc",
    ),
    (
        "after_steal_from_range",
        "magpie_dispatch",
        "steal_from_range",
    ),
    ("after_pull_near", "magpie_dispatch", "pull_near"),
    ("after_push", "magpie_enqueue", "kick_idle_for"),
    ("after_offer", "magpie_tick", "kick_idle_for"),
    ("before_apply_to_core", "magpie_init", "apply_to_core"),
];

/// So many characters of a program's name are kept by the kernel.
const NAME_LENGTH: usize = 15;

/// The functions to attach to: by our program's name, the operation and the function.
pub struct Targets(BTreeMap<&'static str, (OwnedFd, &'static str)>);

impl Targets {
    /// Returns no function: only the kernel's events are recorded.
    pub fn none() -> Targets {
        Targets(BTreeMap::new())
    }

    /// Finds the functions of the running scx_magpie.
    ///
    /// # Errors
    /// If it does not run, or is of a version that lacks one of them.
    pub fn find() -> Result<Targets> {
        let sched_ext = SchedExt::read(Path::new("/"));
        let scheduler = sched_ext.scheduler.clone().unwrap_or_default();
        ensure!(sched_ext.is_enabled(), "the kernel's own scheduler runs");
        ensure!(
            scheduler.starts_with("magpie"),
            "{scheduler} runs, not scx_magpie"
        );
        // The last one: of a scheduler that has just ended, programs may be left.
        let options = ProgInfoQueryOptions::default().include_func_info(true);
        let operations: BTreeMap<String, ProgramInfo> = ProgInfoIter::with_query_opts(options)
            .filter(|program| program.ty == ProgramType::StructOps)
            .map(|program| (program.name.to_string_lossy().into_owned(), program))
            .collect();

        let mut targets = BTreeMap::new();
        for (ours, operation, function) in HOOKS {
            let cut = &operation[..operation.len().min(NAME_LENGTH)];
            let program = operations.get(cut).with_context(|| {
                format!("the running scx_magpie has no operation {operation}: its version differs")
            })?;
            if has_function(program, function)? {
                let fd = Program::fd_from_id(program.id).with_context(|| format!("open {cut}"))?;
                targets.insert(ours, (fd, function));
            }
        }
        Ok(Targets(targets))
    }

    /// Has the BPF side attach to these functions, and leaves out its other programs for the
    /// scheduler.
    ///
    /// # Errors
    /// If libbpf does not find a function.
    pub fn choose(&self, object: &mut OpenObject) -> Result<()> {
        for mut program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            match self.0.get(name.as_str()) {
                Some((operation, function)) => program
                    .set_attach_target(operation.as_raw_fd(), Some((*function).into()))
                    .with_context(|| format!("attach {name} to {function}"))?,
                None if HOOKS.iter().any(|(ours, ..)| *ours == name) => {
                    program.set_autoload(false);
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Returns whether a program has a function. The kernel leaves out those that are never called with
/// the scheduler's options or on this machine.
///
/// # Errors
/// If the scheduler was built without the function.
fn has_function(program: &ProgramInfo, function: &str) -> Result<bool> {
    let name = program.name.to_string_lossy();
    let btf = Btf::from_prog_id(program.id).with_context(|| format!("read the types of {name}"))?;
    let known = btf.type_by_name::<types::Func<'_>>(function);
    let known = known.with_context(|| {
        format!("the running scx_magpie has no function {function}: its version differs")
    })?;
    let id = u32::from(known.type_id());
    Ok(program.func_info.iter().any(|info| info.type_id == id))
}
