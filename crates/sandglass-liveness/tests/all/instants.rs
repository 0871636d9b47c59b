//! What falls at one instant: in whatever order the causes are decided, the decision, the fold and
//! the replay agree, under each version of the rules.

use proptest::prelude::*;
use sandglass_liveness::Fold;
use sandglass_model::{Limit, RulesVersion};

use crate::generated::{OUTCOMES, Step, divergences, limited_life, live_on};
use crate::session::Life;

/// Far enough behind the start that every limit of time is breached.
const LATE_MS: i64 = 10_000_000;

/// Everything that can fall at one instant.
fn causes() -> Vec<Step> {
    let ends = (0..2).flat_map(|nth| {
        (0..OUTCOMES).map(move |outcome| Step::End { nth, outcome, attempt_off: 0 })
    });
    let acts = (0..10).map(Step::Act);
    let stops = (0..3).map(Step::Stop);
    let limits = Limit::ALL.into_iter().map(Step::LimitOf);
    let asks = [true, false].map(|settled| Step::Ask { nth: 0, action: 1, settled, left_ms: 100 });
    let others = [
        Step::Idle { early: false },
        Step::Due(0),
        Step::Due(1),
        Step::Signal { name: 0, from: 2 },
        Step::Signal { name: 1, from: 0 },
        Step::Resume(0),
        Step::Retry { nth: 0, budget_ms: None },
        Step::Retry { nth: 1, budget_ms: Some(7) },
        Step::CallTimedOut { nth: 0, over_ms: 1 },
        Step::CallTimedOut { nth: 1, over_ms: 0 },
    ];
    ends.chain(acts).chain(stops).chain(limits).chain(asks).chain(others).collect()
}

/// What an entity may be doing when the instant comes.
fn situations() -> [Vec<Step>; 6] {
    let work = || vec![Step::Act(7), Step::Act(0)];
    let and = |mut steps: Vec<Step>, step: Step| {
        steps.push(step);
        steps
    };
    [
        Vec::new(),
        work(),
        and(work(), Step::Stop(2)),
        and(work(), Step::Stop(0)),
        and(work(), Step::LimitOf(Limit::ProgressTimeout)),
        vec![Step::Act(3), Step::Act(7), Step::End { nth: 0, outcome: 6, attempt_off: 0 }],
    ]
}

fn life_at_the_instant(rules: RulesVersion, counted: usize, before: &[Step]) -> Life {
    let mut life = limited_life(rules, counted);
    // A stop by a limit has to come late enough to be one.
    life.now += LATE_MS;
    live_on(&mut life, before);
    life
}

fn agree(life: &Life, steps: &[Step]) {
    let mut fold = Fold::new();
    life.log.iter().for_each(|record| fold.apply(record).expect("it fits"));
    for entity in life.entities() {
        assert_eq!(fold.entity(&entity.entity), Some(entity), "{steps:?}");
    }
    assert_eq!(divergences(&life.log), 0, "{steps:?}");
}

#[test]
fn every_pair_of_causes_at_one_instant_is_replayed_as_it_was_decided() {
    let causes = causes();
    for rules in RulesVersion::ALL {
        for before in situations() {
            for first in &causes {
                let mut start = life_at_the_instant(rules, 0, &before);
                live_on(&mut start, std::slice::from_ref(first));
                for second in &causes {
                    let mut life = start.clone();
                    live_on(&mut life, std::slice::from_ref(second));
                    // A refused cause leaves no record.
                    if life.log.len() > start.log.len() {
                        agree(&life, &[first.clone(), second.clone()]);
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_many_causes_at_one_instant_is_replayed_as_it_was_decided(
        which in proptest::collection::vec(any::<prop::sample::Index>(), 3..9),
        situation in any::<prop::sample::Index>(),
        rules in any::<prop::sample::Index>(),
        counted in 0usize..3,
    ) {
        let (causes, situations) = (causes(), situations());
        let rules = *rules.get(&RulesVersion::ALL);
        let before: &Vec<Step> = situation.get(&situations);
        let mut life = life_at_the_instant(rules, counted, before);
        let steps: Vec<Step> = which.iter().map(|one| one.get(&causes).clone()).collect();
        live_on(&mut life, &steps);
        agree(&life, &steps);
    }
}
