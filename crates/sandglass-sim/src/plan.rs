//! What a seed is to be: how many entities, how long, and how bad the world is.

use crate::automaton::{Automaton, Lives, Pace, ResetOn};
use crate::dice::Dice;
use crate::fault::Fault;

/// What is asked of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Entities of each seed; none for as many as the seed says.
    pub entities: Option<usize>,
    /// Only so many steps of the seed, and then rest; none for all.
    pub steps: Option<usize>,
    /// Whether states declare obsolete entries in `reset_on`.
    pub reset_on: ResetOn,
    /// The mistake that is made on purpose.
    pub fault: Option<Fault>,
    /// The command at which the first process crashes; none for as the seed says.
    pub crash_at: Option<u64>,
    /// Whether to tell the story, line by line.
    pub tells: bool,
    /// Whether [`crate::Run::log`] keeps the records.
    pub keeps_log: bool,
}

/// What kind of world a seed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Some entities, whose lives end.
    Usual,
    /// Thousands of entities, with little to do each.
    Wide,
    /// One or two, with histories that are longer than what is read at once.
    Long,
    /// A few, in a world whose times are whole seconds and a millisecond behind them, so that much
    /// falls at one instant.
    Coarse,
}

impl Kind {
    /// Of a hundred seeds one is wide, two are long, and about half of the others are coarse.
    const fn of(seed: u64) -> Self {
        match seed % 100 {
            99 => Self::Wide,
            29 | 69 => Self::Long,
            other if other % 2 == 1 => Self::Coarse,
            _ => Self::Usual,
        }
    }
}

/// What one seed is to be. Chances are of a thousand.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: usize,
    pub(crate) entities: usize,
    pub(crate) fault: Option<Fault>,
    pub(crate) crash_at: Option<u64>,
    /// About so many commands between two crashes; none for a process that never crashes.
    pub(crate) crash_every: Option<u64>,
    /// An append that fails.
    pub(crate) failing_appends: u32,
    /// A read that fails.
    pub(crate) failing_reads: u32,
    /// Room for a handler that isn't there.
    pub(crate) busy: u32,
    /// Longest that an append takes, in milliseconds.
    pub(crate) slowest_ms: u64,
    /// Whether times are whole seconds, and a millisecond behind them.
    pub(crate) is_coarse: bool,
    /// Whether each process finds the clock of its machine set to another hour.
    pub(crate) jumps: bool,
    /// How long entities stay awake, in milliseconds.
    pub(crate) linger_ms: u64,
    /// How many stay awake at once.
    pub(crate) awake_max: usize,
}

impl Plan {
    /// The plan of a seed, and the types of its entities.
    pub(crate) fn of(seed: u64, options: &Options) -> (Self, Vec<Automaton>) {
        let dice = Dice::new(seed, "plan");
        let kind = Kind::of(seed);
        let drawn = dice.within(match kind {
            Kind::Usual => 2..=30,
            Kind::Wide => 1_000..=2_500,
            Kind::Long => 1..=2,
            Kind::Coarse => 2..=12,
        });
        let drawn = usize::try_from(drawn).unwrap_or(usize::MAX);
        let entities = options.entities.unwrap_or(drawn).max(1);
        let steps = match kind {
            Kind::Usual if options.entities.is_none() => 60 + entities * 4,
            Kind::Usual | Kind::Wide => entities * 2,
            Kind::Coarse => 20 + entities * 15,
            Kind::Long => 1_500,
        };
        let is_bad = dice.per_mille(700);
        let bad = |chances: [u32; 4]| if is_bad { *dice.pick(&chances) } else { 0 };
        let every = *dice.pick(&[20, 60, 200, 600]);
        let is_coarse = kind == Kind::Coarse;
        let plan = Self {
            seed,
            is_coarse,
            steps: options.steps.unwrap_or(steps),
            entities,
            fault: options.fault,
            crash_at: options.crash_at,
            crash_every: dice
                .per_mille(750)
                .then_some(every * if matches!(kind, Kind::Wide | Kind::Long) { 20 } else { 1 }),
            failing_appends: bad([0, 5, 20, 80]),
            failing_reads: bad([0, 0, 5, 20]),
            busy: bad([0, 20, 100, 300]),
            slowest_ms: *dice.pick(if is_coarse { &[0, 0, 0, 0, 1] } else { &[0, 0, 1, 5, 200] }),
            jumps: dice.per_mille(150) && !is_coarse,
            linger_ms: *dice.pick(&[0, 0, 1_000, 5_000]),
            awake_max: *dice.pick(&[1, 10, 2_000]),
        };
        let lives = if kind == Kind::Long { Lives::Last } else { Lives::End };
        let types = 1 + dice.below(3);
        let limits = Dice::new(seed, "limits");
        let counted = Dice::new(seed, "counted");
        let automata = (0..types).map(|at| {
            let pace = if is_coarse { Pace::Coarse } else { Pace::Usual };
            let made_up = Automaton::made_up(format!("Kind{at}"), lives, pace, &dice);
            made_up.limited(lives, pace, &limits).counted(&counted)
        });
        (plan, automata.collect())
    }
}
