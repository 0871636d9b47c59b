//! Simulates fewer seeds than a campaign does.

use sandglass_sim::{Mode, Options, Seeds, campaign, simulate};

#[test]
fn every_invariant_holds_in_the_first_worlds_each_simulated_twice() {
    let summary = campaign(
        &Seeds::From { first: 0, count: 40 },
        &Options::default(),
        Mode::Twice { one_in: 1 },
        |_| true,
    )
    .expect("threads");
    assert_eq!(summary.failed, 0, "{summary}");
    let counts = summary.counts;
    // Invariants prove nothing about what never happens.
    for (what, times) in [
        ("completed", counts.completed),
        ("timed out", counts.timed_out),
        ("cancelled", counts.cancelled),
        ("interrupted", counts.interrupted),
        ("asked", counts.asked),
        ("idle", counts.idle),
        ("due", counts.due),
        ("spawned", counts.spawned),
        ("refused spawns", counts.spawns_refused),
        ("reads", counts.read),
        ("breaches", counts.breaches),
        ("stopped runs", counts.stopped),
        ("resumed sessions", counts.resumed),
        ("failed appends", counts.failed_appends),
        ("crashes", counts.crashes),
        ("restarts", counts.restarts),
    ] {
        assert!(times > 10, "{what} only {times} times");
    }
}

#[test]
fn every_invariant_holds_in_a_world_of_a_thousand_entities() {
    let options = Options { entities: Some(1_000), ..Options::default() };
    let run = simulate(7, &options).expect("a runtime");
    assert_eq!(run.violation, None);
    assert!(run.counts.entities > 500, "{:?}", run.counts);
}

#[test]
fn a_long_history_that_is_read_from_snapshots_holds_every_invariant() {
    // A seed with long histories and crashes.
    let run = simulate(29, &Options::default()).expect("a runtime");
    assert_eq!(run.violation, None);
    assert!(run.counts.snapshots > 0 && run.counts.crashes > 0, "{:?}", run.counts);
}

#[test]
fn the_same_seed_ends_at_the_same_clock_random_number_and_log() {
    let run = || simulate(3, &Options::default()).expect("a runtime");
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    let other = simulate(4, &Options::default()).expect("a runtime");
    assert_ne!((first.log_hash, first.next_random), (other.log_hash, other.next_random));
}

#[test]
fn a_simulation_of_fewer_steps_is_a_prefix_of_the_whole() {
    let timeline = |steps| {
        let options = Options { steps, has_timeline: true, ..Options::default() };
        simulate(5, &options).expect("a runtime").timeline
    };
    let (whole, part) = (timeline(None), timeline(Some(20)));
    let is_before = |line: &&String| !line.contains("step   20");
    let part: Vec<_> = part.iter().take_while(is_before).collect();
    assert!(part.len() > 5, "{part:#?}");
    assert!(whole.iter().take(part.len()).eq(part));
}
