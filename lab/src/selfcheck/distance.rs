//! How far two CPUs are from each other, for the self-check of memory.

use std::fmt;

use crate::machine::{Cpu, Memory};

/// Pairs of CPUs that are measured for each distance.
const PAIRS: usize = 3;

/// The distance between two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    Sibling,
    SameLlc,
    OtherLlc,
    OtherNode,
}

impl Distance {
    pub(super) const ALL: [Distance; 4] = [
        Distance::Sibling,
        Distance::SameLlc,
        Distance::OtherLlc,
        Distance::OtherNode,
    ];

    /// Returns the distance between two different CPUs.
    pub(super) fn of(a: &Cpu, b: &Cpu) -> Self {
        if a.core == b.core {
            Distance::Sibling
        } else if a.llc == b.llc {
            Distance::SameLlc
        } else if a.node == b.node {
            Distance::OtherLlc
        } else {
            Distance::OtherNode
        }
    }

    /// Nanoseconds of a line's way over this distance.
    pub(super) fn transfer_ns(self, memory: &Memory) -> f64 {
        let ns = &memory.transfer_ns;
        match self {
            Distance::Sibling => ns.sibling,
            Distance::SameLlc => ns.same_llc,
            Distance::OtherLlc => ns.other_llc,
            Distance::OtherNode => ns.other_node,
        }
    }

    /// Returns up to [`PAIRS`] pairs of CPUs at this distance, spread over the machine; none if the
    /// machine does not have the distance.
    pub(super) fn pairs(self, cpus: &[Cpu]) -> Vec<(u32, u32)> {
        let partners: Vec<(u32, u32)> = cpus
            .iter()
            .filter_map(|a| {
                let mut others = cpus.iter().filter(|b| a.number != b.number);
                let b = others.find(|b| Distance::of(a, b) == self)?;
                Some((a.number, b.number))
            })
            .collect();
        let step = partners.len().div_ceil(PAIRS).max(1);
        partners.into_iter().step_by(step).collect()
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Sibling => "sibling",
            Distance::SameLlc => "same LLC",
            Distance::OtherLlc => "other LLC",
            Distance::OtherNode => "other node",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Distance;
    use crate::Machine;

    #[test]
    fn pairs_are_at_their_distance() {
        let cpus = Machine::preset("vt8-mem").expect("preset").layout();
        assert_eq!(
            Distance::ALL.map(|distance| distance.pairs(&cpus)),
            [
                vec![(0, 1), (3, 2), (6, 7)],
                vec![(0, 2), (3, 0), (6, 4)],
                vec![(0, 4), (3, 4), (6, 0)],
                vec![]
            ]
        );
    }
}
