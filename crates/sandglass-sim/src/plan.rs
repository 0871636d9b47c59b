//! What a seed determines about its world: the number of entities, its length, and what fails.

use crate::automaton::{Automaton, Lives, Pace, ResetOn};
use crate::dice::Dice;
use crate::fault::Fault;

/// The options of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The number of entities; `None` for the number that the seed determines.
    pub entities: Option<usize>,
    /// The number of steps before everything comes to rest; `None` for the number that the seed
    /// determines.
    pub steps: Option<usize>,
    /// Whether states declare obsolete entries in `reset_on`.
    pub reset_on: ResetOn,
    /// The fault to inject.
    pub fault: Option<Fault>,
    /// The command where the first process crashes, and no later one does; `None` for the crashes
    /// that the seed determines.
    pub crash_at: Option<u64>,
    /// Whether the worlds have several hosts. Those of faults that need several always have.
    pub has_hosts: bool,
    /// Whether [`crate::Run::timeline`] records what happens.
    pub has_timeline: bool,
    /// Whether [`crate::Run::log`] keeps the records.
    pub keeps_log: bool,
}

/// The kind of world of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Some entities with lives that end.
    Usual,
    /// Thousands of entities, each with little to do.
    Wide,
    /// One or two entities with histories that are longer than one page of the journal.
    Long,
    /// A few entities in a world whose times are whole seconds, or a millisecond more, so that much
    /// happens at one instant.
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

/// The plan of one seed. Chances are out of 1,000.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: usize,
    pub(crate) entities: usize,
    pub(crate) fault: Option<Fault>,
    pub(crate) crash_at: Option<u64>,
    /// About how many commands there are between two crashes; `None` for no crashes.
    pub(crate) crash_every: Option<u64>,
    /// The chance that an append fails.
    pub(crate) failing_appends: u32,
    /// The chance that a read fails.
    pub(crate) failing_reads: u32,
    /// The chance that there is no slot for a handler.
    pub(crate) busy: u32,
    /// The longest delay of an append, in milliseconds.
    pub(crate) slowest_ms: u64,
    /// Whether times are whole seconds, or a millisecond more.
    pub(crate) is_coarse: bool,
    /// Whether the wall clock jumps by up to an hour between processes.
    pub(crate) jumps: bool,
    /// How long entities stay awake, in milliseconds.
    pub(crate) linger_ms: u64,
    /// Most entities that are awake at once.
    pub(crate) awake_max: usize,
    /// How many spawned entities may have something to do: few, so that worlds stay small.
    pub(crate) busy_spawned_max: u32,
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
            busy_spawned_max: *Dice::new(seed, "quota").pick(&[3, 10, 40]),
        };
        let lives = if kind == Kind::Long { Lives::Last } else { Lives::End };
        let types = 1 + dice.below(3);
        let limits = Dice::new(seed, "limits");
        let counted = Dice::new(seed, "counted");
        let patient = Dice::new(seed, "patient");
        let spawns = Dice::new(seed, "spawns");
        let reads = Dice::new(seed, "reads");
        let automata = (0..types).map(|at| {
            let pace = if is_coarse { Pace::Coarse } else { Pace::Usual };
            let generated = Automaton::generate(format!("Kind{at}"), lives, pace, &dice);
            let generated = generated.with_limits(lives, pace, &limits).with_counting(&counted);
            let generated = generated.with_patience(pace, &patient).with_spawns(types, &spawns);
            generated.with_reads(types, &reads)
        });
        (plan, automata.collect())
    }
}
