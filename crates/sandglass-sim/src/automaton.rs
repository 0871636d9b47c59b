//! Entity types that a seed makes up: valid specs in which everything can happen and nothing
//! continues forever, in two versions, with and without the obsolete `reset_on`.
//!
//! Clients may send an entity to any state. What an entity does on its own (timers, endings) leads
//! to a later state, stays in the state, or is counted by a guard, so that every entity comes to
//! rest.

mod reads;
mod spawns;

use std::fmt::Write as _;

use crate::dice::Dice;
use reads::Reads;
use spawns::Spawns;

/// How far apart the times of a world are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Usual,
    /// Close enough that most coincide.
    Coarse,
}

impl Pace {
    /// Seconds from which budgets, timers and schedules are drawn: few values, so that many of them
    /// fall at the same instant.
    const fn seconds(self) -> &'static [u64] {
        match self {
            Self::Usual => &[1, 2, 3, 5, 10, 30, 60],
            Self::Coarse => &[1, 2],
        }
    }

    /// Seconds from which the budgets of handlers are drawn: in a coarse world so few that late
    /// handlers breach limits of a run.
    const fn budgets(self) -> &'static [u64] {
        match self {
            Self::Usual => self.seconds(),
            Self::Coarse => &[1],
        }
    }

    /// Seconds from which the delays of scheduled actions are drawn.
    const fn delays(self) -> &'static [u64] {
        match self {
            Self::Usual => self.seconds(),
            Self::Coarse => &[0, 1, 2],
        }
    }

    /// How many of 1,000 types have limits.
    const fn limits_chance(self) -> u32 {
        match self {
            Self::Usual => 600,
            Self::Coarse => 900,
        }
    }

    /// A limit that is always set, so that it is breached often enough beside the others.
    fn theme(self, dice: &Dice) -> &'static str {
        match self {
            Self::Usual => "",
            Self::Coarse => dice.pick::<&str>(&THEMES),
        }
    }

    /// How many of 1,000 handlers start together with another one.
    const fn beside_chance(self) -> u32 {
        match self {
            Self::Usual => 300,
            Self::Coarse => 600,
        }
    }
}

/// One of these limits is always set in a coarse world. The limit of inactivity is listed twice,
/// because it is rarely breached.
const THEMES: [&str; 6] = [
    "inactivity_timeout",
    "inactivity_timeout",
    "progress_timeout",
    "run_timeout",
    "execution_timeout",
    "abort_timeout",
];
/// Seconds from which long budgets of handlers without limits are drawn: those are warned of after
/// 600 s of inactivity.
const PATIENT: [u64; 3] = [700, 1_300, 2_500];
/// How many versions of each spec there are.
pub(crate) const VERSIONS: usize = 2;
/// The signal that another entity sends and that states list in `reset_on`.
pub(crate) const PARTNER: &str = "PartnerReplied";
/// What a state's own handlers send, and what the obsolete `reset_on` lists too.
pub(crate) const OWN: [&str; 3] = ["progress", "status", "Touch"];

/// Whether `reset_on` has the obsolete entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResetOn {
    /// Only signals of other entities.
    #[default]
    Needed,
    /// Also what the state's own handlers send, as before handlers had deadlines.
    Obsolete,
}

/// Whether the lives of entities end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lives {
    /// They end in a terminal state, sooner or later.
    End,
    /// They never end, so that histories grow long.
    Last,
}

/// A type of entities that a seed makes up.
#[derive(Clone, Debug)]
pub(crate) struct Automaton {
    pub(crate) name: String,
    states: Vec<State>,
    handlers: Vec<Handler>,
    /// Plain actions: the states that take them, and the state that they lead to.
    goes: Vec<(Vec<usize>, usize)>,
    later: (String, Durations),
    /// The `[limits]` of its spec, by version, if its entities are sessions.
    limits: Option<[String; VERSIONS]>,
    /// The first version that has limits.
    limits_from: usize,
    spawns: Option<Spawns>,
    reads: Option<Reads>,
}

/// Seconds, by version.
type Durations = [u64; VERSIONS];

#[derive(Clone, Debug)]
struct State {
    timer: Option<Timer>,
    indefinite: bool,
    is_partners: bool,
    own_resets: Vec<&'static str>,
}

#[derive(Clone, Debug)]
struct Timer {
    after: Durations,
    leads_to: usize,
    once: bool,
}

#[derive(Clone, Debug)]
struct Handler {
    from: Vec<usize>,
    home: usize,
    budget: Durations,
    schedule_to_start: Option<u64>,
    names_success: bool,
    keeps: bool,
    reruns: bool,
    /// How its spec says that it is counted, by version.
    counted: [&'static str; VERSIONS],
    again: bool,
    /// The state that each ending leads to; `None` if the entity stays in its state.
    endings: [Option<usize>; 5],
    /// The handler that its success starts.
    then: Option<usize>,
    /// The handler that starts together with it.
    beside: Option<usize>,
}

const ENDINGS: [(&str, &str); 5] = [
    ("on_success", "Done"),
    ("on_failure", "Failed"),
    ("on_timeout", "Late"),
    ("on_interrupted", "Lost"),
    ("on_cancelled", "Stopped"),
];

impl Automaton {
    pub(crate) fn generate(name: String, lives: Lives, pace: Pace, dice: &Dice) -> Self {
        let open = 2 + dice.below(4);
        // The last state that anything leads to. Two terminal states follow the open ones.
        let last = if lives == Lives::End { open + 1 } else { open - 1 };
        let states: Vec<State> =
            (0..open).map(|at| State::generate(at, last, pace, dice)).collect();
        let mut handlers: Vec<Handler> =
            (0..1 + dice.below(3)).map(|_| Handler::generate(open, last, pace, dice)).collect();
        for index in 0..handlers.len() {
            let leads_to = handlers[index].endings[0];
            let next = (0..handlers.len()).find(|other| Some(handlers[*other].home) == leads_to);
            handlers[index].then = next.filter(|_| dice.per_mille(500));
            // A guard limits how often `Again` is taken. After that, a timer that always fires must
            // end the state.
            let timer = states[handlers[index].home].timer.as_ref();
            handlers[index].again &= timer.is_some_and(|timer| !timer.once);
        }
        for index in 0..handlers.len() {
            // The endings of the other handler are taken in every state that takes the endings of
            // this one.
            let home = handlers[index].home;
            let fits = |other: &Handler| other.home == home || (other.home > home && !other.again);
            let others: Vec<usize> =
                (0..handlers.len()).filter(|other| fits(&handlers[*other])).collect();
            handlers[index].beside =
                dice.per_mille(pace.beside_chance()).then(|| *dice.pick(&others));
        }
        let goes = (0..3 + dice.below(4)).map(|_| (some_of(open, dice), dice.below(last + 1)));
        let goes: Vec<_> = goes.collect();
        let scheduled = ["Touch", "Beat", "Go0", "Start0"];
        let later = ((*dice.pick(&scheduled)).to_owned(), durations(pace.delays(), dice));
        Self {
            name,
            states,
            handlers,
            goes,
            later,
            limits: None,
            limits_from: 0,
            spawns: None,
            reads: None,
        }
    }

    /// Gives limits to most types, as `dice` decides.
    pub(crate) fn with_limits(self, lives: Lives, pace: Pace, dice: &Dice) -> Self {
        let limits = dice.per_mille(pace.limits_chance()).then(|| {
            let first = limits(lives, pace, dice);
            // A run that starts at the instant of a reload may have a limit that the run before did
            // not have.
            let differs = pace == Pace::Coarse && dice.per_mille(500);
            let second = if differs { limits(lives, pace, dice) } else { first.clone() };
            [first, second]
        });
        // The entities of some types become sessions only with the second version.
        let limits_from = usize::from(dice.per_mille(150));
        Self { limits, limits_from, ..self }
    }

    /// Sets how each handler counts against the bounds of a run, as `dice` decides.
    pub(crate) fn with_counting(mut self, dice: &Dice) -> Self {
        let said = ["", "", "", "turn = true\n", "continues = true\n"];
        for handler in &mut self.handlers {
            handler.counted = [""; VERSIONS].map(|_| *dice.pick(&said));
        }
        self
    }

    /// Gives the handlers of some types without limits budgets that are longer than the silence that
    /// is warned of.
    pub(crate) fn with_patience(mut self, pace: Pace, dice: &Dice) -> Self {
        if self.limits.is_none() && pace == Pace::Usual && dice.per_mille(250) {
            for handler in &mut self.handlers {
                handler.budget = durations(&PATIENT, dice);
            }
        }
        self
    }

    /// Has entities of some types spawn others, of one of `types` types.
    pub(crate) fn with_spawns(self, types: usize, dice: &Dice) -> Self {
        // Entities that outlast the pause after too many were spawned would multiply again and again.
        let is_patient = self.handlers.iter().any(|one| one.budget.iter().any(|of| *of > 60));
        let spawns = dice.per_mille(300).then(|| Spawns::generate(types, !is_patient, dice));
        Self { spawns, ..self }
    }

    /// Has entities of some types read others, of one of `types` types.
    pub(crate) fn with_reads(mut self, types: usize, dice: &Dice) -> Self {
        self.reads = dice.per_mille(600).then(|| Reads::generate(types, dice));
        if self.reads.is_some() && dice.per_mille(500) {
            "Peek".clone_into(&mut self.later.0);
        }
        self
    }

    /// Whether its entities are sessions.
    pub(crate) const fn is_session(&self) -> bool {
        self.limits.is_some()
    }

    /// All actions that clients and guests may request, including some that cannot succeed.
    pub(crate) fn actions(&self) -> Vec<String> {
        let mut actions: Vec<String> =
            ["Touch", "Note", "Beat", "Later", "Nonsense"].map(str::to_owned).into();
        actions.extend((0..self.goes.len()).map(|go| format!("Go{go}")));
        actions.extend((0..self.handlers.len()).map(|h| format!("Start{h}")));
        actions.extend((0..self.handlers.len()).map(|h| format!("Done{h}")));
        let spawns = self.spawns.as_ref().map_or(0, |spawns| spawns.requested.len());
        actions.extend((0..spawns).map(|spawn| format!("Spawn{spawn}")));
        // More often than others, because few entities that it reads exist and belong to the same tenant.
        let peeks = self.reads.iter().flat_map(|_| ["Peek"; 3]);
        actions.extend(peeks.map(str::to_owned));
        actions
    }

    /// What the handlers of `state` send and its obsolete `reset_on` lists.
    pub(crate) fn own_resets(&self, state: &str) -> &[&'static str] {
        let index = state.strip_prefix('S').and_then(|index| index.parse::<usize>().ok());
        index.and_then(|index| self.states.get(index)).map_or(&[], |state| &state.own_resets)
    }

    /// The text of its spec file.
    pub(crate) fn source(&self, version: usize, reset_on: ResetOn) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, version, reset_on);
        out
    }

    fn write(&self, out: &mut String, version: usize, reset_on: ResetOn) -> std::fmt::Result {
        let open = self.states.len();
        let all: Vec<usize> = (0..open).collect();
        let indefinite: Vec<usize> =
            all.iter().copied().filter(|at| self.states[*at].indefinite).collect();
        writeln!(out, "[automaton]\nname = \"{}\"", self.name)?;
        writeln!(out, "states = {}", names(&(0..open + 2).collect::<Vec<_>>(), open))?;
        writeln!(out, "initial = \"S0\"\nterminal = [\"T0\", \"T1\"]")?;
        writeln!(out, "allow_indefinite_states = {}", names(&indefinite, open))?;
        for (variable, kind, initial) in VARIABLES {
            writeln!(out, "[[state]]\nname = \"{variable}\"\ntype = \"{kind}\"")?;
            writeln!(out, "initial = \"{initial}\"")?;
        }
        if let Some(reads) = &self.reads {
            reads.write_variable(out)?;
        }
        out.write_str(INVARIANTS)?;
        action(out, "Touch", &all, None, open, "")?;
        action(out, "Note", &all, None, open, NOTE)?;
        action(out, "Beat", &all, None, open, BEAT)?;
        if let Some(reads) = &self.reads {
            action(out, "Peek", &all, None, open, &reads.guard())?;
        }
        let (scheduled, delay) = &self.later;
        let later = format!("effect = \"schedule {scheduled} {}\"\n", delay[version]);
        action(out, "Later", &all, None, open, &later)?;
        for (index, (from, to)) in self.goes.iter().enumerate() {
            action(out, &format!("Go{index}"), from, Some(*to), open, "")?;
        }
        for index in 0..self.handlers.len() {
            self.write_handler(out, index, version)?;
        }
        let spawns = self.spawns.iter().flat_map(|spawns| spawns.requested.iter().enumerate());
        for (index, effects) in spawns {
            let effects = format!("params = [\"text\"]\neffect = [{effects}]\n");
            action(out, &format!("Spawn{index}"), &all, None, open, &effects)?;
        }
        let spawn = self.spawns.as_ref().map_or("", |spawns| &spawns.on_timer);
        for (index, state) in self.states.iter().enumerate() {
            state.write(out, index, open, version, reset_on, spawn)?;
        }
        let limits = self.limits.as_ref().filter(|_| version >= self.limits_from);
        limits.map_or(Ok(()), |limits| out.write_str(&limits[version]))
    }

    fn write_handler(&self, out: &mut String, index: usize, version: usize) -> std::fmt::Result {
        let (handler, open) = (&self.handlers[index], self.states.len());
        let home = handler.home;
        let beside = handler.beside.map(|other| format!(", \"trigger h{other}\""));
        let starts = format!("effect = [\"trigger h{index}\"{}]\n", beside.unwrap_or_default());
        action(out, &format!("Start{index}"), &handler.from, Some(home), open, &starts)?;
        // Also from earlier states, so that a handler that is kept on exit may end in another
        // state.
        let from: Vec<usize> = (0..=home).collect();
        for ((_, name), to) in ENDINGS.iter().zip(handler.endings) {
            let next = handler.then.filter(|_| *name == "Done");
            let then = next.map(|next| format!("\"trigger h{next}\""));
            let spawn = self.spawns.as_ref().map_or("", |spawns| match *name {
                "Done" => &spawns.on_success,
                "Failed" => &spawns.on_failure,
                _ => "",
            });
            let effects: Vec<&str> =
                then.as_deref().into_iter().chain([spawn]).filter(|one| !one.is_empty()).collect();
            let mut effects = match effects[..] {
                [] => String::new(),
                _ => format!("effect = [{}]\n", effects.join(", ")),
            };
            let reads = self.reads.as_ref().filter(|reads| reads.guards_success);
            effects.extend(reads.filter(|_| *name == "Done").map(Reads::guard));
            action(out, &format!("{name}{index}"), &from, to, open, &effects)?;
        }
        let again = format!(
            "guard = \"tries < 3\"\neffect = [\"increment tries\", \"trigger h{index}\"]\n"
        );
        if handler.again {
            action(out, &format!("Again{index}"), &[home], None, open, &again)?;
        }
        writeln!(out, "[[integration]]\nname = \"h{index}\"\nmodule = \"m{index}\"")?;
        writeln!(out, "deadline = \"{}s\"", handler.budget[version])?;
        if let Some(seconds) = handler.schedule_to_start {
            writeln!(out, "schedule_to_start_timeout = \"{seconds}s\"")?;
        }
        writeln!(out, "keep_on_exit = {}", handler.keeps)?;
        if handler.reruns {
            writeln!(out, "on_crash = \"rerun\"")?;
        }
        out.write_str(handler.counted[version])?;
        for (key, name) in ENDINGS {
            match key {
                "on_success" if handler.names_success => {}
                "on_failure" if handler.again => writeln!(out, "{key} = \"Again{index}\"")?,
                _ => writeln!(out, "{key} = \"{name}{index}\"")?,
            }
        }
        Ok(())
    }
}

const VARIABLES: [(&str, &str, &str); 6] = [
    ("beats", "counter", ""),
    ("left", "counter", "3"),
    ("tries", "counter", ""),
    ("note", "string", ""),
    // The parameter of `Note` sets it.
    ("text", "string", ""),
    ("texts", "list", ""),
];
const NOTE: &str = "params = [\"text\"]\neffect = [\"note = params.text\", \
                    \"append(texts, params.text)\", \"remove_at(texts, 3)\"]\n";
const BEAT: &str = "guard = \"beats < 4\"\neffect = [\"increment beats\", \"left -= 1\", \
                    \"schedule Beat 5\"]\n";
/// The first one refuses the fourth `Beat`, which no timer or ending takes. The others always hold.
const INVARIANTS: &str = "[[invariant]]\nname = \"few_beats\"\nassert = \"beats <= 3\"\n\
     [[invariant]]\nname = \"counted\"\nassert = \"beats == 0 => left < 4 && len(texts) <= 3\"\n\
     [[field_invariant]]\nname = \"last_text\"\nassert = \"empty(text) || text in texts || \
     len(texts) == 3\"\n";

impl State {
    fn generate(at: usize, last: usize, pace: Pace, dice: &Dice) -> Self {
        let indefinite = at == last || dice.per_mille(if at == 0 { 600 } else { 200 });
        let leads_to = at + 1 + dice.below(last - at);
        let (after, once) = (durations(pace.seconds(), dice), dice.per_mille(60));
        let timer = (!indefinite).then_some(Timer { after, leads_to, once });
        let is_own = |_: &&str| dice.per_mille(500);
        let own_resets = OWN.into_iter().filter(|name| is_own(name)).collect();
        Self { timer, indefinite, is_partners: dice.per_mille(500), own_resets }
    }

    fn write(
        &self,
        out: &mut String,
        index: usize,
        open: usize,
        version: usize,
        reset_on: ResetOn,
        spawn: &str,
    ) -> std::fmt::Result {
        let Some(timer) = &self.timer else { return Ok(()) };
        let effect = if spawn.is_empty() { String::new() } else { format!("effect = [{spawn}]\n") };
        action(out, &format!("Expire{index}"), &[index], Some(timer.leads_to), open, &effect)?;
        writeln!(out, "[[state_timeout]]\nstate = \"S{index}\"")?;
        writeln!(out, "after_seconds = {}", timer.after[version])?;
        writeln!(out, "on_timeout = \"Expire{index}\"")?;
        if timer.once {
            writeln!(out, "max_occurrences = 1")?;
        }
        let obsolete: &[&str] = if reset_on == ResetOn::Obsolete { &self.own_resets } else { &[] };
        let partner = self.is_partners.then_some(PARTNER);
        let resets: Vec<&str> = obsolete.iter().copied().chain(partner).collect();
        writeln!(out, "reset_on = {resets:?}")
    }
}

impl Handler {
    fn generate(open: usize, last: usize, pace: Pace, dice: &Dice) -> Self {
        let home = dice.below(open);
        let later = || home + 1 + dice.below(last - home);
        let ending = |_| (home < last && !dice.per_mille(250)).then(later);
        Self {
            from: some_of(open, dice),
            home,
            budget: durations(pace.budgets(), dice),
            schedule_to_start: dice.per_mille(300).then(|| *dice.pick(pace.seconds())),
            names_success: dice.per_mille(300),
            keeps: dice.per_mille(250),
            reruns: dice.per_mille(300),
            counted: [""; VERSIONS],
            again: dice.per_mille(250),
            endings: [0; 5].map(ending),
            then: None,
            beside: None,
        }
    }
}

/// Limits that nest whatever budgets handlers have: each is longer than everything that it must
/// contain.
fn limits(lives: Lives, pace: Pace, dice: &Dice) -> String {
    type Values = &'static [(&'static str, &'static [&'static str])];
    let (times, warnings): (Values, Values) = match pace {
        Pace::Usual => (
            &[
                ("inactivity_timeout", &["61s", "90s"]),
                ("progress_timeout", &["5s", "70s"]),
                ("run_timeout", &["100s", "200s", "600s"]),
                ("execution_timeout", &["700s", "3600s"]),
            ],
            &[
                ("inactivity_warn", &["0", "1s", "5s", "30s"]),
                ("abort_timeout", &["0", "1s", "5s"]),
            ],
        ),
        Pace::Coarse => (
            &[
                ("inactivity_timeout", &["2s", "3s"]),
                ("progress_timeout", &["1s", "2s"]),
                ("run_timeout", &["5s", "6s"]),
                ("execution_timeout", &["7s", "12s"]),
            ],
            &[("inactivity_warn", &["1s", "2s", "3s"]), ("abort_timeout", &["0", "1s", "2s"])],
        ),
    };
    let counts: Values =
        &[("max_loop_iterations", &["1", "2", "5"]), ("max_handler_runs", &["3", "10"])];
    // A final stop would end a life that must not end.
    let is_stopped = lives == Lives::End;
    let stopping: Vec<_> = times.iter().chain(counts).filter(|_| is_stopped).collect();
    let others: Values = &[
        ("repeat_threshold", &["0", "1", "3"]),
        ("stuck_after", &["2s"]),
        ("synthetic", &["[\"status\"]"]),
        ("material", &["[\"progress\", \"action\"]"]),
        ("stop_with_parent", &["true"]),
    ];
    let theme = pace.theme(dice);
    let mut out = "[limits]\n".to_owned();
    let mut retry = String::new();
    let recording = warnings.iter().chain(others);
    for (key, values) in stopping.iter().copied().chain(recording) {
        if !dice.per_mille(300) && *key != theme {
            continue;
        }
        let value = dice.pick(values);
        // Numbers, lists and booleans are not quoted.
        let is_plain = value.parse::<u64>().is_ok() || value.starts_with('[') || *value == "true";
        let value = if is_plain { (*value).to_owned() } else { format!("\"{value}\"") };
        let _ = writeln!(out, "{key} = {value}");
        let again = if *key == theme { 700 } else { 300 };
        if stopping.iter().any(|(stops, _)| stops == key) && dice.per_mille(again) {
            let _ = writeln!(retry, "{key} = {}", dice.within(1..=2));
        }
    }
    if !retry.is_empty() {
        out.push_str("[limits.retry]\n");
        out.push_str(&retry);
    }
    out
}

fn durations(seconds: &[u64], dice: &Dice) -> Durations {
    [0; VERSIONS].map(|_| *dice.pick(seconds))
}

/// At least one state, and any others.
fn some_of(open: usize, dice: &Dice) -> Vec<usize> {
    let always = dice.below(open);
    (0..open).filter(|at| *at == always || dice.per_mille(600)).collect()
}

fn state_name(at: usize, open: usize) -> String {
    if at < open { format!("S{at}") } else { format!("T{}", at - open) }
}

fn names(states: &[usize], open: usize) -> String {
    format!("{:?}", states.iter().map(|at| state_name(*at, open)).collect::<Vec<_>>())
}

fn action(
    out: &mut String,
    name: &str,
    from: &[usize],
    to: Option<usize>,
    open: usize,
    more: &str,
) -> std::fmt::Result {
    writeln!(out, "[[action]]\nname = \"{name}\"\nfrom = {}", names(from, open))?;
    if let Some(to) = to {
        writeln!(out, "to = \"{}\"", state_name(to, open))?;
    }
    out.write_str(more)
}
