//! The benchmark works, and gives the reason when it cannot. Its numbers do not matter here.

use magpie_native::contention::{Options, Scenario, cpus, markdown, measure};

#[test]
fn the_quick_benchmark_measures_every_cell() {
    let options = Options::quick();
    let cells = measure(&options).expect("measuring");
    let layouts = 6;
    let announcing = 1 + options.threads.len();
    let searching = if cpus() > 1 { 2 } else { 1 };
    let too_small: usize = options
        .threads
        .iter()
        .map(|&threads| {
            options
                .places
                .iter()
                .filter(|&&places| places < threads)
                .count()
        })
        .sum();
    assert_eq!(
        cells.len(),
        ((announcing + searching) * options.places.len() - too_small) * layouts
    );
    for cell in &cells {
        assert!(cell.kept_ns.len() <= options.keep && cell.kept_ns.len() <= cell.rounds as usize);
        assert!(
            cell.kept_ns.iter().all(|&ns| ns > 0.1 && ns < 1e8),
            "{cell:?}"
        );
        assert!(cell.kept_ns.is_sorted());
    }
    let text = markdown(&cells);
    assert_eq!(text.matches("plain bitmap").count(), announcing + searching);
    for cell in cells
        .iter()
        .filter(|cell| cell.scenario == Scenario::Announce)
    {
        if let Some(ns) = cell.median_ns() {
            assert!(text.contains(&format!(" {ns:.1} |")), "{cell:?}\n{text}");
        }
    }
}

#[test]
fn more_threads_than_cpus_are_refused() {
    let options = Options {
        threads: vec![cpus() + 1],
        ..Options::quick()
    };
    let error = measure(&options)
        .expect_err("nothing can be measured")
        .to_string();
    assert!(
        error.contains("at the same time") && error.contains(&format!("{} CPUs", cpus())),
        "{error}"
    );
}
