//! What fails, in which order and for how long: a function of the seed.

use std::time::Duration;

use crate::random::Random;

/// How long a host's lease lasts: the daemon's default.
pub(crate) const TTL: Duration = Duration::from_secs(5);

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// They are reset, and new ones are accepted and reset.
    Close,
    /// Nothing arrives any more, and they stay.
    Hold,
    /// They are reset once.
    Reset,
    /// Each piece is late by this.
    Delay(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL, and a start after this time.
    Kill { host: usize, down: Duration },
    /// SIGSTOP, and SIGCONT after this time.
    Stop { host: usize, length: Duration },
    /// SIGSTOP for longer than its lease. It cannot reach the database when it continues, and for this time.
    Zombie { host: usize, stopped: Duration, cut: Duration },
    /// Its connections to the database.
    CutDatabase { host: usize, how: Cut, length: Duration },
    /// Its peers' connections to it.
    CutPeers { host: usize, how: Cut, length: Duration },
    /// Both.
    Isolate { host: usize, how: Cut, length: Duration },
    /// It gives its partitions away on request, and takes partitions again.
    Drain { host: usize },
    /// SIGTERM and a start, after a drain on request or without it.
    Restart { host: usize, drains_first: bool },
    /// One host after the other is restarted.
    RollingRestart { drains_first: bool },
    /// All processes of PostgreSQL are killed; a start after this time.
    KillDatabase { down: Duration },
    /// PostgreSQL is stopped in order; a start after this time.
    RestartDatabase { down: Duration },
    /// PostgreSQL is killed for ever, and a synchronous standby takes its place.
    Promote,
}

/// The kinds of faults, and how often each is drawn compared with the others.
const KINDS: [(Kind, usize); 12] = [
    (Kind::Kill, 40),
    (Kind::Stop, 12),
    (Kind::Zombie, 5),
    (Kind::CutDatabase, 6),
    (Kind::CutPeers, 4),
    (Kind::Isolate, 4),
    (Kind::Drain, 4),
    (Kind::Restart, 6),
    (Kind::RollingRestart, 2),
    (Kind::KillDatabase, 5),
    (Kind::RestartDatabase, 4),
    (Kind::Promote, 3),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kill,
    Stop,
    Zombie,
    CutDatabase,
    CutPeers,
    Isolate,
    Drain,
    Restart,
    RollingRestart,
    KillDatabase,
    RestartDatabase,
    Promote,
}

impl Kind {
    /// Whether it happens to a process that is in no cluster, too.
    const fn concerns_one_alone(self) -> bool {
        matches!(self, Self::Kill | Self::KillDatabase | Self::RestartDatabase | Self::Promote)
    }

    /// Whether an operator does it, so that no request may fail.
    pub(crate) const fn is_planned(self) -> bool {
        matches!(self, Self::Drain | Self::Restart | Self::RollingRestart)
    }
}

/// A fault, and how long clients send requests before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) pause: Duration,
    pub(crate) fault: Fault,
}

/// The kinds with these names, separated by commas; `None` if one is unknown.
pub(crate) fn kinds(names: &str) -> Option<Vec<Kind>> {
    let all = || KINDS.iter().map(|(kind, _)| *kind);
    names.split(',').map(|name| all().find(|kind| format!("{kind:?}") == name.trim())).collect()
}

/// The steps of a trial of so many hosts. If there are enough steps, each kind of fault is among them, or
/// each of `only`.
pub(crate) fn plan(seed: u64, hosts: usize, steps: usize, only: Option<&[Kind]>) -> Vec<Step> {
    let mut random = Random::new(seed);
    let may_happen = |kind: Kind| {
        (hosts > 1 || kind.concerns_one_alone()) && only.is_none_or(|only| only.contains(&kind))
    };
    let possible = KINDS.iter().filter(|(kind, _)| may_happen(*kind));
    let possible: Vec<(Kind, usize)> = possible.copied().collect();
    assert!(!possible.is_empty(), "none of these faults is possible");
    let mut kinds: Vec<Kind> = possible.iter().map(|(kind, _)| *kind).collect();
    kinds.truncate(steps);
    while kinds.len() < steps {
        kinds.push(draw(&mut random, &possible));
    }
    shuffle(&mut random, &mut kinds);
    kinds
        .into_iter()
        .map(|kind| Step {
            pause: millis(&mut random, 200, 2_000),
            fault: detail(&mut random, hosts, kind),
        })
        .collect()
}

fn draw(random: &mut Random, possible: &[(Kind, usize)]) -> Kind {
    let mut nth = random.below(possible.iter().map(|(_, weight)| weight).sum());
    for (kind, weight) in possible {
        match nth.checked_sub(*weight) {
            None => return *kind,
            Some(rest) => nth = rest,
        }
    }
    unreachable!("the number is below the sum of the weights")
}

fn shuffle(random: &mut Random, kinds: &mut [Kind]) {
    for end in (1..kinds.len()).rev() {
        kinds.swap(end, random.below(end + 1));
    }
}

fn detail(random: &mut Random, hosts: usize, kind: Kind) -> Fault {
    let host = random.below(hosts);
    match kind {
        Kind::Kill => Fault::Kill { host, down: millis(random, 0, 9_000) },
        // From half of a lease to four of them.
        Kind::Stop => Fault::Stop { host, length: leases(random, 500, 4_000) },
        Kind::Zombie => {
            let (stopped, cut) = (leases(random, 1_200, 2_000), millis(random, 2_000, 4_000));
            Fault::Zombie { host, stopped, cut }
        }
        Kind::CutDatabase => {
            Fault::CutDatabase { host, how: cut(random), length: leases(random, 100, 2_500) }
        }
        Kind::CutPeers => {
            Fault::CutPeers { host, how: cut(random), length: leases(random, 100, 2_000) }
        }
        Kind::Isolate => {
            Fault::Isolate { host, how: cut(random), length: leases(random, 100, 2_500) }
        }
        Kind::Drain => Fault::Drain { host },
        Kind::Restart => Fault::Restart { host, drains_first: random.below(2) == 0 },
        Kind::RollingRestart => Fault::RollingRestart { drains_first: random.below(2) == 0 },
        Kind::KillDatabase => Fault::KillDatabase { down: outage(random) },
        Kind::RestartDatabase => Fault::RestartDatabase { down: outage(random) },
        Kind::Promote => Fault::Promote,
    }
}

fn cut(random: &mut Random) -> Cut {
    match random.below(8) {
        0..3 => Cut::Close,
        3..6 => Cut::Hold,
        6 => Cut::Reset,
        _ => Cut::Delay(millis(random, 1, 80)),
    }
}

/// One in three outlasts the leases.
fn outage(random: &mut Random) -> Duration {
    if random.below(3) == 0 { leases(random, 1_300, 2_500) } else { millis(random, 0, 2_500) }
}

/// A time between these thousandths of a lease.
fn leases(random: &mut Random, least: usize, most: usize) -> Duration {
    let ttl = usize::try_from(TTL.as_millis()).expect("it is short");
    millis(random, least * ttl / 1000, most * ttl / 1000)
}

fn millis(random: &mut Random, least: usize, most: usize) -> Duration {
    let millis = least + random.below(most - least + 1);
    Duration::from_millis(u64::try_from(millis).expect("it is short"))
}

impl Fault {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Kill { .. } => Kind::Kill,
            Self::Stop { .. } => Kind::Stop,
            Self::Zombie { .. } => Kind::Zombie,
            Self::CutDatabase { .. } => Kind::CutDatabase,
            Self::CutPeers { .. } => Kind::CutPeers,
            Self::Isolate { .. } => Kind::Isolate,
            Self::Drain { .. } => Kind::Drain,
            Self::Restart { .. } => Kind::Restart,
            Self::RollingRestart { .. } => Kind::RollingRestart,
            Self::KillDatabase { .. } => Kind::KillDatabase,
            Self::RestartDatabase { .. } => Kind::RestartDatabase,
            Self::Promote => Kind::Promote,
        }
    }

    /// The host that it happens to, if it is one.
    pub(crate) const fn host(&self) -> Option<usize> {
        match self {
            Self::Kill { host, .. }
            | Self::Stop { host, .. }
            | Self::Zombie { host, .. }
            | Self::CutDatabase { host, .. }
            | Self::CutPeers { host, .. }
            | Self::Isolate { host, .. }
            | Self::Drain { host }
            | Self::Restart { host, .. } => Some(*host),
            _ => None,
        }
    }
}

#[test]
fn a_seed_repeats_its_plan() {
    assert_eq!(plan(7, 3, 200, None), plan(7, 3, 200, None));
    assert_ne!(plan(7, 3, 200, None), plan(8, 3, 200, None));
}

#[test]
fn a_plan_has_only_the_kinds_that_were_named() {
    let only = kinds("Kill, Drain").expect("known");
    let plan = plan(9, 3, 50, Some(&only));
    assert!(plan.iter().all(|step| only.contains(&step.fault.kind())), "{plan:?}");
    assert!(only.iter().all(|kind| plan.iter().any(|step| step.fault.kind() == *kind)));
    assert_eq!(kinds("Kill,kill"), None);
}

#[test]
fn a_plan_has_each_kind_of_fault_for_each_host() {
    let short = plan(3, 4, KINDS.len(), None);
    for (kind, _) in KINDS {
        assert!(short.iter().any(|step| step.fault.kind() == kind), "{kind:?}");
    }
    let long = plan(3, 4, 400, None);
    for host in 0..4 {
        assert!(long.iter().any(|step| step.fault.host() == Some(host)));
    }
    let is_kill = |step: &&Step| step.fault.kind() == Kind::Kill;
    assert!(long.iter().filter(is_kill).count() > 100, "kills are the most frequent faults");
    assert_eq!(plan(3, 4, 5, None).len(), 5);
}

#[test]
fn a_process_alone_has_no_faults_of_a_cluster() {
    for step in plan(5, 1, 100, None) {
        assert!(step.fault.kind().concerns_one_alone(), "{step:?}");
        assert!(step.fault.host().is_none_or(|host| host == 0));
    }
}

#[test]
fn stops_are_shorter_and_longer_than_a_lease() {
    let plan = plan(11, 3, 1000, None);
    let stops: Vec<Duration> = plan
        .iter()
        .filter_map(|step| match step.fault {
            Fault::Stop { length, .. } => Some(length),
            _ => None,
        })
        .collect();
    assert!(stops.iter().any(|length| *length < TTL) && stops.iter().any(|it| *it > 3 * TTL));
    assert!(stops.iter().all(|length| *length >= TTL / 2 && *length <= 4 * TTL));
}
