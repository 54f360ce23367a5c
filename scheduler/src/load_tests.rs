//! The BPF object as it is opened: its defaults, and what settings, switches and topology make of
//! it.

use clap::{CommandFactory, Parser};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use super::*;
use crate::kernel_mask::Core;
use crate::options::Options;
use crate::preferred::{Knobs, governor_name, mode_name};

/// Runs `test` on the constants as the BPF side defines them.
fn with_constants(test: impl FnOnce(&mut types::rodata)) {
    let mut object = MaybeUninit::uninit();
    let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
    assert!(skel.open_object().name().is_some());
    test(skel.maps.rodata_data.as_mut().unwrap());
}

fn settings(arguments: &[&str]) -> Settings {
    Options::parse_from(["scx_magpie"].iter().chain(arguments)).settings
}

#[test]
fn help_tells_the_default_of_the_bpf_side() {
    let help = Options::command().render_long_help().to_string();
    with_constants(|rodata| {
        let slice_us = rodata.slice_ns / 1000;
        assert!(
            help.contains(&format!("in microseconds [default: {slice_us}]")),
            "{help}"
        );
    });
    let mut object = MaybeUninit::uninit();
    let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
    let settings = skel.maps.data_data.as_mut().unwrap().preferred_settings;
    for default in [
        format!("milliseconds [default: {}]", settings.period_ns / 1_000_000),
        format!(
            "fewer cores are used, in 1/100 of a percent [default: {}]",
            settings.high
        ),
        format!(
            "more cores are used, in 1/100 of a percent [default: {}]",
            settings.low
        ),
        format!("takes [default: {}]", governor_name(settings.governor)),
    ] {
        assert!(help.contains(&default), "no {default:?} in {help}");
    }
    assert_eq!(mode_name(settings.mode), "auto");
}

#[test]
fn preferred_cpus_are_loaded_where_they_are_of_use() {
    let loads = |arguments: &[&str], is_virtual| settings(arguments).loads_preferred(is_virtual);
    assert!(loads(&[], true) && !loads(&[], false));
    assert!(loads(&["--preferred=0-1"], false) && loads(&["--preferred=off"], false));
    assert!(!loads(&["--no-preferred", "--preferred=0-1"], true));
    assert!(!loads(&["--only=steal"], true) && loads(&["--only=preferred"], true));
}

#[test]
fn a_change_is_written_whole_or_not_at_all() {
    let online = "0-7".parse().unwrap();
    let mut object = MaybeUninit::uninit();
    let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
    let mut to = skel.maps.data_data.as_mut().unwrap().preferred_settings;
    let mut requested = [0; topology::MAX_CPUS / 64];
    let mut write = |set: &str, knobs: Knobs| {
        let set = Some(set.parse().unwrap());
        let change = Change { set, knobs };
        let result = preferred_bpf::write(&change, &online, &mut to, &mut requested);
        (result, to.mode, to.period_ns, requested[0])
    };
    let knobs = |period, low| Knobs {
        period,
        low,
        ..Knobs::default()
    };
    let (result, _, period, bits) = write("1-2", knobs(Some(50), None));
    assert!(result.is_ok());
    assert_eq!((period, bits), (50_000_000, 6));
    let (result, _, period, bits) = write("8-9", knobs(Some(70), None));
    assert!(result.unwrap_err().contains("online are 0-7"));
    assert_eq!((period, bits), (50_000_000, 6));
    let (result, mode, ..) = write("off", knobs(None, Some(5000)));
    assert!(result.is_err());
    assert_eq!(mode_name(mode), "set");
}

#[test]
fn the_kernels_mask_decides_where_the_user_does_not() {
    let mut object = MaybeUninit::uninit();
    let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
    let mut to = skel.maps.data_data.as_mut().unwrap().preferred_settings;
    let mut requested = [0; topology::MAX_CPUS / 64];
    assert!(preferred_bpf::is_auto(&to));
    let two = "1-2".parse().unwrap();
    for (cpus, is_change, mode) in [
        (None, false, "auto"),
        (Some(&two), true, "kernel"),
        (Some(&two), false, "kernel"),
        (None, true, "auto"),
    ] {
        let changed = preferred_bpf::follow_kernel(cpus, &mut to, &mut requested);
        assert_eq!((changed, mode_name(to.mode)), (is_change, mode));
        assert!(preferred_bpf::is_auto(&to));
    }
    assert_eq!(requested[0], 6);

    let change = Change {
        set: Some("off".parse().unwrap()),
        ..Change::default()
    };
    let online = "0-7".parse().unwrap();
    preferred_bpf::write(&change, &online, &mut to, &mut requested).unwrap();
    assert!(!preferred_bpf::is_auto(&to));
}

#[test]
fn without_options_the_bpf_side_keeps_its_defaults() {
    with_constants(|rodata| {
        let slice_ns = rodata.slice_ns;
        configure(rodata, &settings(&[]));
        assert_eq!(rodata.slice_ns, slice_ns);
        assert!(rodata.steal_enabled && rodata.steal_gate_enabled && rodata.preempt_enabled);
    });
}

#[test]
fn each_switch_clears_its_own_mechanism() {
    with_constants(|rodata| {
        configure(rodata, &settings(&["--no-steal"]));
        assert!(!rodata.steal_enabled && rodata.steal_gate_enabled && rodata.preempt_enabled);
        configure(rodata, &settings(&["--no-steal-gate"]));
        assert!(rodata.steal_enabled && !rodata.steal_gate_enabled && rodata.preempt_enabled);
        configure(rodata, &settings(&["--only=preferred"]));
        assert!(rodata.steal_enabled && !rodata.steal_gate_enabled && rodata.preempt_enabled);
        configure(rodata, &settings(&["--no-preempt", "--slice-us=500"]));
        assert!(rodata.steal_enabled && !rodata.preempt_enabled && rodata.cpu_weight_enabled);
        configure(rodata, &settings(&["--no-cpu-weight"]));
        assert!(!rodata.cpu_weight_enabled && rodata.cpu_max_enabled);
        configure(rodata, &settings(&["--no-cpu-max"]));
        assert!(rodata.cpu_weight_enabled && !rodata.cpu_max_enabled);
        configure(rodata, &settings(&["--slice-us=500"]));
        assert_eq!(rodata.slice_ns, 500_000);
    });
}

/// The BPF side tests one constant per part, so no part may be on without what it works with.
#[test]
fn a_switch_clears_what_needs_its_mechanism() {
    with_constants(|rodata| {
        let mut parts = |arguments: &[&str]| {
            configure(rodata, &settings(arguments));
            (
                rodata.balance_enabled,
                rodata.fork_enabled,
                rodata.spread_enabled,
            )
        };
        assert_eq!(parts(&[]), (true, true, true));
        assert_eq!(parts(&["--no-steal"]), (false, true, true));
        assert_eq!(parts(&["--no-wakeup"]), (true, false, false));
        assert_eq!(parts(&["--no-wakeup-idle-core"]), (true, true, false));
        assert_eq!(parts(&["--only=steal"]), (true, false, false));
        assert_eq!(parts(&["--only=wakeup"]), (true, true, true));
    });
}

#[test]
fn the_topology_arrives_and_the_rest_has_no_place() {
    let machine = topology::Machine {
        cpus: (0..3)
            .map(|id| topology::Cpu {
                id,
                core: id,
                llc: id / 2,
                node: 0,
                capacity: 1,
            })
            .collect(),
        nr_cpu_ids: 3,
    };
    with_constants(|rodata| {
        describe(rodata, &topology::lay_out(&machine).unwrap());
        assert_eq!((rodata.nr_cpus, rodata.nr_llcs), (3, 2));
        assert_eq!(rodata.cpu_topology[2].place, 8);
        assert_eq!(rodata.llc_topology[1].node_llcs, 2);
        assert_eq!(rodata.cpu_at_place[..3], [0, 1, topology::NO_PLACE]);
        let core = |cpu| Core {
            node: 0,
            cpus: [cpu].into_iter().collect(),
        };
        assert_eq!(preferred_bpf::cores(rodata), [core(0), core(1), core(2)]);
        assert!(
            rodata.cpu_at_place[9..]
                .iter()
                .all(|cpu| *cpu == topology::NO_PLACE)
        );
    });
}
