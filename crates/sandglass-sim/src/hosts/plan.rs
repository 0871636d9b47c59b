//! What a seed determines about a world of several hosts.

use crate::dice::Dice;
use crate::fault::Fault;
use crate::plan::Options;

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Everything.
    Storm,
    /// Only the database is away from time to time. No host ends by that.
    Outages,
    /// Hosts join, drain and leave as planned. Nothing is interrupted by that.
    Moves,
    /// Hosts are killed, and nothing else goes wrong.
    Kills,
}

/// The plan of one world. Chances are out of 1,000.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: usize,
    /// How many hosts there are at first.
    pub(crate) hosts: usize,
    /// How many hosts there may be.
    pub(crate) slots: usize,
    pub(crate) entities: usize,
    pub(crate) weather: Weather,
    pub(crate) fault: Option<Fault>,
    /// Whether refused connections show that a host is dead.
    pub(crate) is_fast: bool,
    /// The chance that a statement is executed and its response is lost.
    pub(crate) lost_responses: u32,
    /// The chance that a statement is executed late, perhaps after its client is gone.
    pub(crate) late_statements: u32,
    /// The chance that a connection between hosts breaks during a request.
    pub(crate) broken_requests: u32,
    /// How far the clocks of hosts differ, in milliseconds.
    pub(crate) skew_ms: u64,
    /// How long entities stay awake, in milliseconds.
    pub(crate) linger_ms: u64,
    /// The longest time between two steps, in milliseconds.
    pub(crate) step_ms: u64,
}

impl Plan {
    pub(crate) fn of(seed: u64, options: &Options) -> Self {
        let dice = Dice::new(seed, "hosts");
        let drawn = *dice.pick(&[
            Weather::Storm,
            Weather::Storm,
            Weather::Storm,
            Weather::Outages,
            Weather::Moves,
            Weather::Kills,
        ]);
        let weather = match options.fault {
            Some(Fault::ClaimAfterOutage) => Weather::Outages,
            Some(_) => Weather::Storm,
            None => drawn,
        };
        let is_rough = weather != Weather::Moves;
        let bad = |chances: [u32; 4]| if is_rough { *dice.pick(&chances) } else { 0 };
        let hosts = usize::try_from(dice.within(2..=4)).unwrap_or(2);
        let entities = usize::try_from(dice.within(4..=24)).unwrap_or(4);
        let steps = usize::try_from(dice.within(30..=120)).unwrap_or(60);
        Self {
            seed,
            steps: options.steps.unwrap_or(steps),
            hosts,
            slots: hosts + 1,
            entities: options.entities.unwrap_or(entities).max(1),
            weather,
            fault: options.fault,
            is_fast: weather != Weather::Storm || dice.per_mille(500),
            lost_responses: bad([0, 2, 10, 30]),
            late_statements: if weather == Weather::Storm { bad([0, 2, 5, 20]) } else { 0 },
            broken_requests: bad([0, 5, 20, 60]),
            skew_ms: *dice.pick(&[0, 2, 50, 240]),
            linger_ms: *dice.pick(&[0, 1_000, 5_000]),
            step_ms: *dice.pick(&[300, 1_000, 2_000]),
        }
    }
}
