//! Worlds of several hosts.

use sandglass_sim::{HostCounts, Options, simulate};

const OPTIONS: Options = Options {
    entities: None,
    steps: None,
    reset_on: sandglass_sim::ResetOn::Needed,
    fault: None,
    crash_at: None,
    has_hosts: true,
    has_timeline: false,
    keeps_log: false,
};

#[test]
fn invariants_hold_in_worlds_of_several_hosts_and_these_contain_what_they_should() {
    let mut counts = HostCounts::default();
    for seed in 0..40 {
        let run = simulate(seed, &OPTIONS).expect("a runtime");
        assert_eq!(run.violation, None, "seed {seed}");
        counts += run.hosts;
    }
    for (what, count, least) in [
        ("processes killed", counts.killed, 10),
        ("pauses", counts.pauses, 10),
        ("declarations of death", counts.declared, 10),
        ("hosts that entered again", counts.rejoined, 2),
        ("outages", counts.outages, 10),
        ("failovers", counts.failovers, 5),
        ("partitions taken from dead hosts", counts.taken, 500),
        ("partitions given away", counts.moves, 500),
        ("requests forwarded", counts.forwards, 500),
        ("appends of unknown outcome", counts.unknown, 20),
        ("effects", counts.effects, 500),
    ] {
        assert!(count >= least, "only {count} {what}");
    }
}

#[test]
fn a_world_of_several_hosts_is_the_same_each_time() {
    for seed in 0..6 {
        let (one, two) = (simulate(seed, &OPTIONS), simulate(seed, &OPTIONS));
        assert_eq!(one.expect("a runtime"), two.expect("a runtime"), "seed {seed}");
    }
}

#[test]
fn the_first_steps_of_a_world_of_several_hosts_do_not_depend_on_the_later_ones() {
    let timeline = |steps| {
        let options = Options { steps, has_timeline: true, ..OPTIONS };
        simulate(2, &options).expect("a runtime").timeline
    };
    let (few, all) = (timeline(Some(10)), timeline(None));
    let healed = few.iter().position(|line| line.contains("everything is healed"));
    let healed = healed.expect("the end of the story");
    assert!(healed > 100, "only {healed} lines");
    assert_eq!(few[..healed], all[..healed]);
}
