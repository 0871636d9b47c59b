//! What a guest does in one handler run, drawn when the run starts.

use sandglass_model::{
    AskUntil, Completion, EntityRef, Failure, FailureKind, LimitBreach, LimitKind, Object, Outcome,
    Trap, TrapKind,
};
use serde_json::json;

use crate::automaton::OWN;
use crate::dice::Dice;
use crate::scene::Scene;

/// The behavior of a guest in one handler run.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// How long it waits for a slot.
    pub(crate) queued_ms: u64,
    pub(crate) moves: Vec<Move>,
    pub(crate) ending: Ending,
    /// Whether it returns as soon as a graceful stop is requested.
    pub(crate) is_graceful: bool,
    /// How many of its host calls are ended by their own time limit without a notice, so that only
    /// its report contains them.
    pub(crate) slow_calls: u64,
}

/// One step of a guest before it ends.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Wait(u64),
    Signal(&'static str),
    /// A host call that takes this long.
    Call(u64),
    /// A host call that is ended by its own time limit.
    SlowCall,
    Ask(Box<(EntityRef, String, AskUntil)>),
    /// A signal to that entity.
    SignalTo(EntityRef),
}

/// How a guest ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// It returns after its last step.
    Answer(Outcome),
    /// It returns one millisecond before its deadline, and can be killed until then.
    ReturnNear(Outcome),
    /// It cannot be killed, and returns this long after its deadline; 0 is the very instant of the
    /// deadline.
    ReturnAt { after_deadline_ms: u64, outcome: Outcome },
    /// It never returns.
    Hang,
    /// The host panics.
    Panic,
    /// It cannot be run.
    NotRun,
}

impl Guest {
    pub(crate) fn generate(
        scene: &Scene,
        of: &EntityRef,
        names: &[EntityRef],
        budget_ms: u64,
        is_calm: bool,
    ) -> Self {
        let dice = &scene.guests;
        let queued_ms = *dice.pick(&[0, 0, 0, 0, 10, 1_000, 1_001, 5_000]);
        let outcome = outcome(dice, scene.plan.is_coarse);
        let mut moves = Vec::new();
        if !is_calm {
            for _ in 0..dice.below(4) {
                moves.push(Move::generate(scene, of, names, budget_ms));
            }
        }
        let ending = match dice.below(20) {
            0..=2 => Ending::Hang,
            3 => {
                if scene.plan.is_coarse {
                    moves.push(Move::Wait(wait_ms(scene, budget_ms)));
                }
                Ending::Panic
            }
            4 => Ending::NotRun,
            5 | 6 => Ending::ReturnAt { after_deadline_ms: 0, outcome },
            7..=9 => Ending::ReturnAt { after_deadline_ms: late_ms(scene), outcome },
            10 => Ending::ReturnNear(outcome),
            _ => {
                moves.push(Move::Wait(wait_ms(scene, budget_ms)));
                Ending::Answer(outcome)
            }
        };
        if !is_calm {
            add_calls(scene, &mut moves, budget_ms);
            add_signals(scene, &mut moves, names);
            add_slow_calls(scene, &mut moves);
        }
        let is_graceful = dice.per_mille(500);
        let slow_calls = if dice.per_mille(100) { dice.within(1..=1_000) } else { 0 };
        Self { queued_ms, moves, ending, is_graceful, slow_calls }
    }

    pub(crate) const fn can_be_killed(&self) -> bool {
        !matches!(self.ending, Ending::ReturnAt { .. })
    }
}

impl Move {
    fn generate(scene: &Scene, of: &EntityRef, names: &[EntityRef], budget_ms: u64) -> Self {
        let dice = &scene.guests;
        match dice.below(10) {
            0..=3 => Self::Signal(OWN[dice.below(2)]),
            4 => Self::Ask(Box::new((of.clone(), "Touch".to_owned(), AskUntil::Transition))),
            5 | 6 if !names.is_empty() => {
                let target = Self::asked(scene, names);
                let action = scene.action_for(&target, dice);
                let until =
                    if dice.per_mille(600) { AskUntil::Settled } else { AskUntil::Transition };
                Self::Ask(Box::new((target, action, until)))
            }
            _ => Self::Wait(wait_ms(scene, budget_ms / 2)),
        }
    }

    /// The entity that a guest asks: any; in a coarse world mostly the one that clients act on.
    fn asked(scene: &Scene, names: &[EntityRef]) -> EntityRef {
        let is_focused = scene.plan.is_coarse && scene.guests.per_mille(700);
        let focus = is_focused.then(|| scene.story().focus.clone()).flatten();
        focus.unwrap_or_else(|| scene.guests.pick(names).clone())
    }
}

/// Adds host calls, some of them between waits, from a stream of their own.
fn add_calls(scene: &Scene, moves: &mut Vec<Move>, budget_ms: u64) {
    let dice = &scene.calls;
    for _ in 0..*dice.pick(&[0, 0, 1, 1, 2, 4]) {
        let millis = match scene.plan.is_coarse {
            true => *dice.pick(&[0, 0, 1_000, 1_001]),
            false => dice.within(0..=budget_ms / 4),
        };
        let place = dice.below(moves.len() + 1);
        moves.insert(place, Move::Call(millis));
    }
}

/// Adds signals to other entities, or to its own, from a stream of their own.
fn add_signals(scene: &Scene, moves: &mut Vec<Move>, names: &[EntityRef]) {
    let dice = &scene.signals;
    if !names.is_empty() && dice.per_mille(150) {
        let target = dice.pick(names).clone();
        moves.insert(dice.below(moves.len() + 1), Move::SignalTo(target));
    }
}

/// Adds host calls that reach their time limit, from a stream of their own.
fn add_slow_calls(scene: &Scene, moves: &mut Vec<Move>) {
    let dice = &scene.slow_calls;
    for _ in 0..*dice.pick(&[0, 0, 0, 0, 1, 2, 5]) {
        moves.insert(dice.below(moves.len() + 1), Move::SlowCall);
    }
}

/// How long a guest waits: at most `most_ms`. In a coarse world it waits for whole seconds, or one
/// millisecond longer.
fn wait_ms(scene: &Scene, most_ms: u64) -> u64 {
    let dice = &scene.guests;
    match scene.plan.is_coarse {
        true => (*dice.pick(&[0, 0, 0, 1, 1_000, 1_001, 2_000, 2_001])).min(most_ms),
        false => dice.within(0..=most_ms),
    }
}

/// How long after its deadline a guest returns.
fn late_ms(scene: &Scene) -> u64 {
    match scene.plan.is_coarse {
        true => *scene.guests.pick(&[1, 1_000, 1_001, 2_000, 2_001, 3_001]),
        false => wait_ms(scene, 2_999) + 1,
    }
}

/// What a guest returns. In a coarse world each kind of outcome is about equally likely.
fn outcome(dice: &Dice, is_coarse: bool) -> Outcome {
    let failed = |kind| {
        let message = "no luck".to_owned();
        Outcome::Failed(Failure { kind, message, result: Some(json!({ "success": false })) })
    };
    let kind = match dice.below(11) {
        kind if !is_coarse => kind,
        0..=2 => 0,
        3..=5 => 2,
        6 | 7 => 10,
        _ => 3,
    };
    match kind {
        0 => failed(FailureKind::GuestFailure),
        1 => failed(FailureKind::InvalidJson),
        10 => Outcome::Limit(LimitBreach {
            kind: LimitKind::WasmMemory,
            limit: 65_536,
            observed: 65_537,
        }),
        2 => Outcome::Trapped(Trap { kind: TrapKind::Unreachable, message: "trap".to_owned() }),
        _ => Outcome::Completed(Completion {
            action: dice.per_mille(700).then(|| format!("Done{}", dice.below(3))),
            params: Object::from([("text".to_owned(), json!("done"))]),
            result: json!({ "success": true }),
        }),
    }
}
