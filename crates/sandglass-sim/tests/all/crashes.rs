//! Crashes the first process at every command, one command per simulation.

use sandglass_sim::{Options, simulate};

#[test]
fn a_crash_at_any_command_of_a_life_breaks_no_promise() {
    let small = Options { entities: Some(2), steps: Some(16), ..Options::default() };
    for seed in 1..3 {
        let never = simulate(seed, &Options { crash_at: Some(u64::MAX), ..small });
        let commands = never.expect("a runtime").first_commands;
        assert!(commands > 10, "seed {seed} has {commands} commands");
        for at in 1..=commands {
            let run = simulate(seed, &Options { crash_at: Some(at), ..small });
            let run = run.expect("a runtime");
            assert_eq!(run.violation, None, "seed {seed}, crash at command {at}");
            assert_eq!(run.counts.crashes, 1, "seed {seed}, crash at command {at}");
        }
    }
}
