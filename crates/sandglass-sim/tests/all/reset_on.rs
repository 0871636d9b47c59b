//! `reset_on` does not need the signals that a state's own handlers send.

use sandglass_sim::{Mode, Options, Seeds, campaign};

#[test]
fn without_the_obsolete_resets_no_timer_fires_that_did_not_fire_before() {
    let summary =
        campaign(&Seeds::From { first: 0, count: 25 }, &Options::default(), Mode::ResetOn, |_| {
            true
        })
        .expect("threads");
    assert_eq!(summary.failed, 0, "{summary}");
    let compared = summary.reset_on.expect("it was compared");
    assert_eq!(compared.differing, 0, "only the specs differ");
    assert_eq!(compared.fired_with, compared.fired_without);
    assert_eq!((compared.fired_in_flight, compared.fired_anew), (0, 0));
    assert!(compared.fired_without > 50, "timers fire at all: {compared:?}");
    assert!(compared.spared > 5, "the old rule ended healthy handlers: {compared:?}");
}
