//! The rights that the serving program keeps: those to load BPF programs, and only while it loads some.
//!
//! ```text
//!                 bounding, permitted          effective
//! start           as the user has them         as the user has them
//! keep_few()      CAP_BPF, CAP_PERFMON         none
//! Loading         CAP_BPF, CAP_PERFMON         CAP_BPF, CAP_PERFMON
//! serving         CAP_BPF, CAP_PERFMON         none
//! ```
//!
//! Serving takes none: the kernel lets the holder of a file descriptor use a map, a link or a program,
//! and root owns the files of interrupts and workqueues. The two cannot go for good, because programs
//! are loaded anew when the power profile or the set of CPUs changes.
//!
//! Capabilities belong to threads, and a new thread has those of its maker. So this happens before the
//! program starts its first thread.

use std::marker::PhantomData;

use anyhow::{Context, Result};
use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::stat::{Mode, umask};

/// What loading takes.
const LOADING: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Gives up for good what this program will never need, and leaves the rest unused until [`Loading`].
/// Files and sockets that it makes are its user's alone.
///
/// # Errors
/// When the kernel refuses, which it does only in a sandbox that forbids the system calls.
pub fn keep_few() -> Result<()> {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let permitted = caps::read(None, CapSet::Permitted).context("reading the capabilities")?;
    let kept = kept(&permitted);
    for capability in caps::read(None, CapSet::Bounding).context("reading the bounding set")? {
        if !kept.contains(&capability) {
            // Refused without CAP_SETPCAP. This program runs no other, so little is lost.
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
    let none = CapsHashSet::new();
    for (set, capabilities) in [
        (CapSet::Effective, &none),
        (CapSet::Permitted, &kept),
        (CapSet::Inheritable, &none),
    ] {
        caps::set(None, set, capabilities).context("giving up capabilities")?;
    }
    Ok(())
}

/// Returns what loading takes. An old container grants CAP_SYS_ADMIN instead, which includes it.
fn kept(permitted: &CapsHashSet) -> CapsHashSet {
    let has_all = LOADING
        .iter()
        .all(|capability| permitted.contains(capability));
    let useful = |capability: &&Capability| {
        LOADING.contains(capability) || (!has_all && **capability == Capability::CAP_SYS_ADMIN)
    };
    permitted.iter().filter(useful).copied().collect()
}

/// The time in which this thread may load BPF programs, which ends when this is dropped. It does not
/// nest, and stays on its thread, because capabilities are a thread's.
pub struct Loading(PhantomData<*const ()>);

impl Loading {
    /// Begins that time.
    ///
    /// # Errors
    /// When the kernel refuses, as [`keep_few`].
    pub fn begin() -> Result<Self> {
        let permitted = caps::read(None, CapSet::Permitted).context("reading the capabilities")?;
        caps::set(None, CapSet::Effective, &permitted).context("taking up capabilities")?;
        Ok(Loading(PhantomData))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Err(error) = caps::clear(None, CapSet::Effective) {
            log::warn!("cannot drop capabilities after loading: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_capabilities_two_are_kept() {
        let all = caps::all();
        assert_eq!(kept(&all), CapsHashSet::from(LOADING));
        let old = CapsHashSet::from([Capability::CAP_SYS_ADMIN, Capability::CAP_CHOWN]);
        assert_eq!(kept(&old), CapsHashSet::from([Capability::CAP_SYS_ADMIN]));
        assert!(kept(&CapsHashSet::new()).is_empty());
    }
}
