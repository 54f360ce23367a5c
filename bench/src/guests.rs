//! Guests with different kernels, side by side: the place of candidates that name a kernel.
//!
//! One guest boots per kernel and command line. The runner says whose turn it is, and the guest of
//! that candidate then runs what it asks for, under the candidate's settings. In virtual time the
//! other guests are stopped meanwhile: an idle guest would let its time run ahead as fast as the
//! host can.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use magpie_lab::GuestOptions;
use serde_json::{Value, json};

use crate::applied::{self, Applied};
use crate::candidate::Candidate;
use crate::place::{Place, Ran, Vm};
use crate::provenance::Values;
use crate::setting::Boot;

/// Booted guests, of which one is in use.
pub struct Guests {
    guests: Vec<(Boot, Vm)>,
    current: usize,
    /// The settings in force in the guest in use.
    applied: Vec<Applied>,
}

impl Guests {
    /// Boots a guest for each kernel of the candidates, and tries their settings. `options` gives
    /// the options of the guest for a kernel.
    ///
    /// # Errors
    /// If a guest does not boot, or a kernel lacks a setting; then with the settings it has.
    pub fn boot(
        candidates: &[Candidate],
        options: impl Fn(&Boot) -> Result<GuestOptions>,
    ) -> Result<Self> {
        let mut guests: Vec<(Boot, Vm)> = Vec::new();
        for candidate in candidates {
            if guests.iter().any(|(boot, _)| *boot == candidate.boot) {
                continue;
            }
            let guest = Vm::boot(&options(&candidate.boot)?)
                .with_context(|| format!("boot the kernel of {}", candidate.name))?;
            // In virtual time, an idle guest would take the CPU from the one that boots next.
            guest.pause()?;
            guests.push((candidate.boot.clone(), guest));
        }
        let mut guests = Self {
            guests,
            current: 0,
            applied: Vec::new(),
        };
        guests.guest().resume()?;
        for candidate in candidates {
            guests
                .enter(candidate)
                .with_context(|| format!("the candidate {}", candidate.name))?;
            guests.leave()?;
        }
        // The report names the kernel of the guest in use as its own: that of the baseline.
        if let [baseline, ..] = candidates {
            guests.enter(baseline)?;
            guests.leave()?;
        }
        Ok(guests)
    }

    fn guest(&mut self) -> &mut Vm {
        &mut self.guests[self.current].1
    }

    /// The kernel release of each candidate, for the result file.
    pub fn kernels(&self, candidates: &[Candidate]) -> Value {
        let kernel = |candidate: &Candidate| {
            let guest = self.guests.iter().find(|(boot, _)| *boot == candidate.boot);
            guest.map(|(_, guest)| (candidate.name.clone(), json!(guest.kernel())))
        };
        let kernels: BTreeMap<String, Value> = candidates.iter().filter_map(kernel).collect();
        json!(kernels)
    }
}

impl Place for Guests {
    fn machine(&self) -> Values {
        self.guests[0].1.machine()
    }

    fn kernel(&self) -> String {
        self.guests[self.current].1.kernel()
    }

    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran> {
        self.guest().run(argv, timeout)
    }

    fn read(&mut self, path: &str) -> Result<String> {
        self.guest().read(path)
    }

    fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        self.guest().start_scheduler(argv)
    }

    fn stop_scheduler(&mut self) -> Result<()> {
        self.guest().stop_scheduler()
    }

    fn scheduler_died(&mut self) -> Result<Option<String>> {
        self.guest().scheduler_died()
    }

    fn enter(&mut self, candidate: &Candidate) -> Result<()> {
        let is_its = |(boot, _): &(Boot, Vm)| *boot == candidate.boot;
        let index = self.guests.iter().position(is_its);
        let index = index.context("no guest was booted for this kernel")?;
        if index != self.current {
            self.guest().pause()?;
            self.current = index;
            self.guest().resume()?;
        }
        self.applied = applied::apply(self.guest(), &candidate.settings)?;
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let applied = std::mem::take(&mut self.applied);
        applied::restore(self.guest(), &applied)
    }
}
