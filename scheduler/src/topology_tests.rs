//! Properties of the tables on machines of every size and shape, and the guesses for offline CPUs
//! on shapes that exist.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Makes a machine of LLCs, each a node and its cores as (siblings, capacity). CPUs are numbered as
/// in most kernels: the first siblings of all cores, then the second ones.
fn machine(llcs: &[(usize, Vec<(usize, usize)>)]) -> Machine {
    let mut cpus = Vec::new();
    let mut id = 0;
    let threads = llcs
        .iter()
        .flat_map(|(_, cores)| cores)
        .map(|core| core.0)
        .max()
        .unwrap_or(1);
    for thread in 0..threads {
        let mut core = 0;
        for (llc, (node, cores)) in llcs.iter().enumerate() {
            for (siblings, capacity) in cores {
                if thread < *siblings {
                    cpus.push(Cpu {
                        id,
                        core,
                        llc,
                        node: *node,
                        capacity: *capacity,
                    });
                    id += 1;
                }
                core += 1;
            }
        }
    }
    Machine {
        cpus,
        nr_cpu_ids: id,
    }
}

fn uniform(nodes: usize, llcs_per_node: usize, cores: usize, siblings: usize) -> Machine {
    let llcs: Vec<_> = (0..nodes * llcs_per_node)
        .map(|llc| (llc / llcs_per_node, vec![(siblings, 1024); cores]))
        .collect();
    machine(&llcs)
}

/// Checks everything that the BPF side relies on.
fn check(machine: &Machine) -> Tables {
    let tables = lay_out(machine).unwrap();
    let online: BTreeMap<_, _> = machine.cpus.iter().map(|cpu| (cpu.id, *cpu)).collect();
    assert_eq!(tables.cpus.len(), machine.nr_cpu_ids);
    assert!(tables.llcs.len() <= MAX_LLCS);
    assert!(tables.cpu_at_place.len() <= MAX_PLACES);
    assert_eq!(tables.cpu_at_place.len() % CPUS_PER_LINE, 0);

    // Every possible CPU has exactly one place, and the place has that CPU.
    let taken = tables
        .cpu_at_place
        .iter()
        .filter(|cpu| **cpu != NO_PLACE)
        .count();
    assert_eq!(taken, machine.nr_cpu_ids);
    for (id, cpu) in tables.cpus.iter().enumerate() {
        assert_eq!(tables.cpu_at_place[cpu.place as usize] as usize, id);
        assert!((1..=1024).contains(&cpu.capacity));
    }
    assert!(tables.cpus.iter().any(|cpu| cpu.capacity == 1024));

    // Siblings are adjacent; a core lies in one LLC; online CPUs are where the machine has them.
    for (id, cpu) in tables.cpus.iter().enumerate() {
        assert!(cpu.core_size >= 1);
        let next = |at: &usize| Some(usize::from(tables.cpus[*at].sibling));
        let ring: Vec<_> = std::iter::successors(Some(id), next)
            .skip(1)
            .take(usize::from(cpu.core_size))
            .collect();
        assert_eq!(ring.last(), Some(&id));
        assert_eq!(BTreeSet::from_iter(&ring).len(), ring.len());
        assert!(
            ring.iter()
                .all(|at| tables.cpus[*at].core_first == cpu.core_first)
        );
        assert!((cpu.core_first..cpu.core_first + cpu.core_size).contains(&cpu.place));
        let llc = &tables.llcs[cpu.llc as usize];
        assert_eq!(cpu.node, llc.node);
        assert!(cpu.core_first >= llc.first);
        assert!(cpu.core_first + cpu.core_size <= llc.first + llc.size);
    }
    for a in online.values() {
        assert_eq!(tables.cpus[a.id].node as usize, a.node);
        for b in online.values().take(64) {
            let same = |f: fn(&cpu_topology) -> u16| f(&tables.cpus[a.id]) == f(&tables.cpus[b.id]);
            assert_eq!(a.core == b.core, same(|cpu| cpu.core_first));
            if !tables.llcs_merged {
                assert_eq!(a.llc == b.llc, same(|cpu| cpu.llc));
            }
        }
    }

    // Each LLC starts on a cache line, and no two LLCs share one.
    let mut lines = BTreeSet::new();
    for llc in &tables.llcs {
        assert!(llc.size >= 1);
        assert_eq!(llc.first as usize % CPUS_PER_LINE, 0);
        let first = llc.first as usize / CPUS_PER_LINE;
        let last = (llc.first + llc.size - 1) as usize / CPUS_PER_LINE;
        for line in first..=last {
            assert!(lines.insert(line), "line {line} is in two LLCs");
        }
    }

    check_ranks(&tables);

    // The LLCs of a node are neighbours in the table, and each names the first and the number of
    // them.
    for (index, llc) in tables.llcs.iter().enumerate() {
        let first = llc.node_first as usize;
        let end = first + llc.node_llcs as usize;
        assert!((first..end).contains(&index));
        for (other, seen) in tables.llcs.iter().enumerate() {
            assert_eq!(seen.node == llc.node, (first..end).contains(&other));
        }
    }
    tables
}

/// Checks that the order has every core once, and that each prefix of it gives each node its share
/// of the cores, within one core.
fn check_ranks(tables: &Tables) {
    let node_of = |place: u16| {
        let cpu = tables.cpu_at_place[place as usize] as usize;
        assert_eq!(
            tables.cpus[cpu].core_first, place,
            "not the first of a core"
        );
        tables.cpus[cpu].node
    };
    let ranked: BTreeSet<_> = tables.core_at_rank.iter().collect();
    let cores: BTreeSet<_> = tables.cpus.iter().map(|cpu| &cpu.core_first).collect();
    assert_eq!(ranked, cores);
    assert_eq!(tables.core_at_rank.len(), cores.len());

    let mut total: BTreeMap<u16, usize> = BTreeMap::new();
    for place in &tables.core_at_rank {
        *total.entry(node_of(*place)).or_default() += 1;
    }
    let mut taken: BTreeMap<u16, usize> = BTreeMap::new();
    for (index, place) in tables.core_at_rank.iter().enumerate() {
        *taken.entry(node_of(*place)).or_default() += 1;
        for (node, of) in &total {
            let share = ((index + 1) * of) as f64 / cores.len() as f64;
            let has = taken.get(node).copied().unwrap_or(0) as f64;
            assert!(
                (has - share).abs() <= 1.0,
                "of {} cores node {node} has {has}, its share is {share}",
                index + 1
            );
        }
    }
}

/// Makes machines of up to 4096 CPUs with LLCs of unequal size, cores with and without SMT, mixed
/// capacities, and nodes with any number of LLCs.
fn any_machine() -> impl Strategy<Value = Machine> {
    let core = (
        prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        1usize..2000,
    );
    let llc = (0usize..64, prop::collection::vec(core, 1..20));
    prop::collection::vec(llc, 1..24).prop_map(|llcs| machine(&llcs))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tables_hold_for_any_machine(machine in any_machine()) {
        check(&machine);
    }

    #[test]
    fn tables_hold_with_any_cpus_offline(
        mut machine in any_machine(),
        offline in prop::collection::vec(any::<bool>(), 1..97),
        extra in 0usize..300,
    ) {
        machine.cpus.retain(|cpu| cpu.id == 0 || !offline[cpu.id % offline.len()]);
        machine.nr_cpu_ids += extra;
        prop_assume!(machine.nr_cpu_ids <= MAX_CPUS);
        check(&machine);
    }

    #[test]
    fn no_core_of_two_lies_across_two_lines(machine in any_machine()) {
        let small = machine.cpus.iter().all(|cpu| cpu.id < MAX_CPUS);
        prop_assume!(small);
        let tables = lay_out(&machine).unwrap();
        for cpu in &tables.cpus {
            let last = cpu.core_first + cpu.core_size - 1;
            prop_assert_eq!(
                cpu.core_first as usize / CPUS_PER_LINE,
                last as usize / CPUS_PER_LINE
            );
        }
    }
}

#[test]
fn one_cpu() {
    let tables = check(&uniform(1, 1, 1, 1));
    assert_eq!(tables.cpu_at_place[..2], [0, NO_PLACE]);
    assert_eq!(
        (tables.llcs[0].node_first, tables.llcs[0].node_llcs),
        (0, 1)
    );
}

#[test]
fn siblings_numbered_far_apart_are_adjacent() {
    let tables = check(&uniform(1, 1, 4, 2));
    assert_eq!(tables.cpu_at_place, [0, 4, 1, 5, 2, 6, 3, 7]);
}

#[test]
fn largest_machines() {
    check(&uniform(64, 8, 4, 2));
    check(&uniform(1, 1, 4096, 1));
    check(&uniform(8, 64, 1, 8));
}

#[test]
fn more_llcs_than_room_become_one_per_node() {
    // A virtual machine with one socket per vCPU looks like this.
    let tables = check(&uniform(4, 256, 1, 1));
    assert!(tables.llcs_merged);
    assert_eq!(tables.llcs.len(), 4);
}

#[test]
fn more_cpus_than_room_are_refused_with_the_remedy() {
    let machine = Machine {
        nr_cpu_ids: MAX_CPUS + 1,
        ..uniform(1, 1, 1, 1)
    };
    let message = lay_out(&machine).unwrap_err().to_string();
    assert!(
        message.contains("4097") && message.contains("MAX_CPUS"),
        "{message}"
    );
    assert!(
        lay_out(&Machine {
            cpus: vec![],
            nr_cpu_ids: 1
        })
        .is_err()
    );
}

#[test]
fn capacities_are_relative_to_the_fastest() {
    let tables = check(&machine(&[(0, vec![(2, 2000), (1, 500), (1, 1)])]));
    let capacities: Vec<_> = tables.cpus.iter().map(|cpu| cpu.capacity).collect();
    assert_eq!(capacities, [1024, 256, 1, 1024]);
}

fn with_offline(mut machine: Machine, offline: &[usize]) -> Tables {
    machine.cpus.retain(|cpu| !offline.contains(&cpu.id));
    check(&machine)
}

#[test]
fn an_offline_sibling_goes_back_to_its_core() {
    // 2 LLCs of 2 cores: CPU 6 is the sibling of CPU 2, alone in LLC 1's first core.
    let tables = with_offline(uniform(1, 2, 2, 2), &[6]);
    assert_eq!(tables.cpus[6].core_first, tables.cpus[2].core_first);
    assert_eq!(tables.cpus[6].llc, 1);
}

#[test]
fn an_offline_cpu_fills_the_llc_that_lacks_one() {
    for (cpu, llc) in [(0, 0), (3, 0), (4, 1), (5, 1), (7, 1)] {
        let tables = with_offline(uniform(1, 2, 4, 1), &[cpu]);
        assert_eq!(tables.cpus[cpu].llc, llc, "CPU {cpu}");
        assert_eq!(tables.llcs.len(), 2);
    }
}

#[test]
fn room_for_hotplug_leaves_the_real_llc_alone() {
    let tables = check(&Machine {
        nr_cpu_ids: 240,
        ..uniform(1, 1, 4, 1)
    });
    assert_eq!(tables.llcs[0].size, 4);
    assert!(tables.llcs.iter().all(|llc| llc.size <= 4));
    // As many LLCs as the table holds are within its limits.
    check(&Machine {
        nr_cpu_ids: MAX_CPUS,
        ..uniform(1, 1, 4, 1)
    });
    check(&Machine {
        nr_cpu_ids: MAX_CPUS,
        ..uniform(64, 8, 1, 1)
    });
}

#[test]
fn nodes_of_unequal_size_give_cores_in_turn() {
    // Nodes of 1 core and of 3 cores: shares of a quarter and three quarters.
    let tables = check(&machine(&[(0, vec![(1, 1)]), (1, vec![(1, 1); 3])]));
    let nodes: Vec<_> = tables
        .core_at_rank
        .iter()
        .map(|place| tables.cpus[tables.cpu_at_place[*place as usize] as usize].node)
        .collect();
    assert_eq!(nodes, [1, 1, 0, 1]);
}

#[test]
fn this_machine_can_be_described() {
    check(&describe_host().unwrap());
}
