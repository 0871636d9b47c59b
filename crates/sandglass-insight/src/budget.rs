//! Whether budgets fit what handlers take, by what a journal says of them.

use std::collections::BTreeMap;

use sandglass_model::{DeadlineOwner, DispatchId, Dispatched, Ended, Event, OutcomeKind, Record};

/// Fewest runs that a budget is suggested by: of fewer, the slowest in a hundred says nothing.
pub const RUNS_MIN: u64 = 100;
/// Most rows that are kept: more than anybody reads. The rest is counted.
pub const ROWS_MAX: usize = 1_000;
/// Most host functions that kills of one row are told apart by; the rest is `other`.
const SPANS_MAX: usize = 64;
/// Most handlers in flight that are kept: more than a host ever has. The ends of others are
/// nobody's, and counted.
const OPEN_MAX: usize = 1 << 20;
/// Decimal digits of a time that are kept, so that a row has few thousand different ones.
const DIGITS_KEPT: u32 = 3;
/// How much room above the slowest in a thousand is suggested, in percent of it.
const ROOM_PERCENT: u64 = 150;
/// A budget of so many times the suggested one is called too long: a handler that hangs is
/// noticed that much later.
const TOO_LONG: u64 = 4;

/// What is known of one kind of handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Which kind.
    pub of: Kind,
    /// The budget that its spec declares, or the default, in milliseconds: the last one seen.
    pub budget_ms: u64,
    /// Whether the spec declares none.
    pub is_default: bool,
    /// Runs that ended by themselves, or at the deadline of this budget.
    pub runs: u64,
    /// What those took, in milliseconds; one that was killed took its budget at least.
    pub took: Quantiles,
    /// What those took that ended by themselves.
    pub took_by_itself: Quantiles,
    /// Whether these times are estimated by the bounds of histograms.
    pub is_estimated: bool,
    /// Those that were killed at the deadline of this budget, by what was running.
    pub killed: BTreeMap<String, u64>,
}

/// A kind of handler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The type of the entities.
    pub entity_type: String,
    /// The action that it is dispatched by.
    pub action: String,
    /// The integration.
    pub integration: String,
}

/// Times that so many of a hundred, or of a thousand, don't go beyond, in milliseconds; of
/// those above a second, three digits are kept, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// One half.
    pub p50_ms: u64,
    /// 99 of 100.
    pub p99_ms: u64,
    /// 999 of 1,000.
    pub p999_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Quantiles {
    /// The same, none above `most_ms`.
    #[must_use]
    pub fn at_most(self, most_ms: u64) -> Self {
        Self {
            p50_ms: self.p50_ms.min(most_ms),
            p99_ms: self.p99_ms.min(most_ms),
            p999_ms: self.p999_ms.min(most_ms),
            max_ms: self.max_ms.min(most_ms),
        }
    }
}

/// What is to be done about a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// There are too few runs to tell.
    TooFew,
    /// All were killed, so nobody knows what one takes: the budget is too small, or what they
    /// waited for hung. What they died in tells which.
    AllKilled,
    /// It fits.
    Keep,
    /// This many milliseconds: runs come too near to it, or are cut off by it.
    Raise(u64),
    /// This many milliseconds: what hangs would be noticed sooner.
    Lower(u64),
    /// It fits those that end by themselves. Those that are killed hang, and more time
    /// wouldn't help them.
    Hangs,
}

impl Budget {
    /// How many were killed.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.killed.values().sum()
    }

    /// What to do about it. Half as much again as the slowest in a thousand is room enough;
    /// where runs are killed although 99 in 100 of the others take less than half of the
    /// budget, those hang.
    #[must_use]
    pub fn advice(&self) -> Advice {
        if self.runs > 0 && self.kills() >= self.runs {
            return Advice::AllKilled;
        }
        if self.runs < RUNS_MIN {
            return Advice::TooFew;
        }
        let by_itself = self.took_by_itself;
        let is_far = by_itself.p99_ms.saturating_mul(2) <= self.budget_ms;
        match self.kills() {
            0 => self.fitted(),
            _ if is_far && by_itself.max_ms > 0 => Advice::Hangs,
            _ => Advice::Raise(rounded_up(self.budget_ms.saturating_mul(2), 2)),
        }
    }

    fn fitted(&self) -> Advice {
        let wanted = self.took.p999_ms.saturating_mul(ROOM_PERCENT) / 100;
        let wanted = rounded_up(wanted.max(1), 2);
        if wanted > self.budget_ms {
            Advice::Raise(wanted)
        } else if wanted.saturating_mul(TOO_LONG) < self.budget_ms {
            Advice::Lower(wanted)
        } else {
            Advice::Keep
        }
    }
}

/// Looks through a journal, in the order of its records.
#[derive(Debug, Default)]
pub struct Survey {
    kinds: BTreeMap<Kind, Tally>,
    open: BTreeMap<(DispatchId, u32), Kind>,
    untold: u64,
}

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// In the order of their kinds.
    pub budgets: Vec<Budget>,
    /// Runs that are in none of them, because there are too many kinds.
    pub untold: u64,
}

impl Survey {
    /// Takes the next record.
    pub fn feed(&mut self, record: &Record) {
        let Some(entity) = &record.entity else { return };
        match &record.event {
            Event::Dispatched(dispatched) => {
                let kind = Kind {
                    entity_type: entity.entity_type().to_owned(),
                    action: dispatched.action.clone(),
                    integration: dispatched.integration.clone(),
                };
                self.dispatched(kind, dispatched);
            }
            Event::Ended(ended) => {
                let of = self.open.remove(&(ended.dispatch, ended.attempt));
                match of.and_then(|kind| self.kinds.get_mut(&kind)) {
                    Some(tally) => tally.ended(ended),
                    None => self.untold += 1,
                }
            }
            _ => {}
        }
    }

    fn dispatched(&mut self, kind: Kind, dispatched: &Dispatched) {
        let is_known = self.kinds.contains_key(&kind);
        if (!is_known && self.kinds.len() >= ROWS_MAX) || self.open.len() >= OPEN_MAX {
            return;
        }
        let tally = self.kinds.entry(kind.clone()).or_default();
        // An asker's, or an operator's, says nothing of what the spec declares.
        if dispatched.owner == DeadlineOwner::Handler && dispatched.retried.is_none() {
            tally.declared(dispatched.budget_ms, dispatched.budget_defaulted);
        }
        self.open.insert((dispatched.dispatch, dispatched.attempt), kind);
    }

    /// What was found.
    #[must_use]
    pub fn finish(self) -> Budgets {
        let seen = self.kinds.into_iter().filter(|(_, tally)| tally.budget_ms > 0);
        let budgets = seen.map(|(of, tally)| tally.finish(of)).collect();
        Budgets { budgets, untold: self.untold }
    }
}

#[derive(Debug, Default)]
struct Tally {
    budget_ms: u64,
    is_default: bool,
    by_itself: Times,
    all: Times,
    killed: BTreeMap<String, u64>,
}

impl Tally {
    fn declared(&mut self, budget_ms: u64, is_default: bool) {
        if self.budget_ms != budget_ms {
            // They were cut off by another one.
            self.killed.clear();
            self.all = self.by_itself.clone();
        }
        (self.budget_ms, self.is_default) = (budget_ms, is_default);
    }

    fn ended(&mut self, ended: &Ended) {
        let took = ended.deadline.elapsed_ms;
        match ended.outcome.kind() {
            OutcomeKind::Completed | OutcomeKind::Failed => {
                self.by_itself.add(took);
                self.all.add(took);
            }
            OutcomeKind::TimedOut if self.is_own(ended) => {
                self.all.add(took);
                let span = ended.dying_span.as_deref().unwrap_or("guest");
                let is_told = self.killed.contains_key(span) || self.killed.len() < SPANS_MAX;
                let span = if is_told { span } else { "other" };
                *self.killed.entry(span.to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Whether it was this budget that was used up.
    fn is_own(&self, ended: &Ended) -> bool {
        let deadline = &ended.deadline;
        deadline.owner == DeadlineOwner::Handler && deadline.budget_ms == self.budget_ms
    }

    fn finish(self, of: Kind) -> Budget {
        Budget {
            of,
            budget_ms: self.budget_ms,
            is_default: self.is_default,
            runs: self.all.count,
            took: self.all.quantiles(),
            took_by_itself: self.by_itself.quantiles(),
            is_estimated: false,
            killed: self.killed,
        }
    }
}

/// How often each time was taken.
#[derive(Clone, Debug, Default)]
struct Times {
    counts: BTreeMap<u64, u64>,
    count: u64,
}

impl Times {
    fn add(&mut self, millis: u64) {
        *self.counts.entry(rounded_up(millis, DIGITS_KEPT)).or_default() += 1;
        self.count += 1;
    }

    fn quantiles(&self) -> Quantiles {
        Quantiles {
            p50_ms: self.quantile(500),
            p99_ms: self.quantile(990),
            p999_ms: self.quantile(999),
            max_ms: self.quantile(1_000),
        }
    }

    /// The smallest time that so many of a thousand don't go beyond.
    fn quantile(&self, of_thousand: u64) -> u64 {
        let rank = self.count.saturating_mul(of_thousand).div_ceil(1_000);
        let mut seen = 0;
        let reached = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        reached.map_or(0, |(millis, _)| *millis)
    }
}

/// The next number that has at most so many digits before its zeros.
fn rounded_up(number: u64, digits: u32) -> u64 {
    let all = number.checked_ilog10().map_or(1, |log| log + 1);
    let unit = 10_u64.pow(all.saturating_sub(digits));
    number.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(budget_ms: u64, took: &[(u64, u64)], killed: &[(&str, u64)]) -> Budget {
        let mut tally = Tally { budget_ms, ..Tally::default() };
        for (millis, runs) in took {
            for _ in 0..*runs {
                tally.by_itself.add(*millis);
                tally.all.add(*millis);
            }
        }
        for (span, kills) in killed {
            for _ in 0..*kills {
                tally.all.add(budget_ms);
            }
            tally.killed.insert((*span).to_owned(), *kills);
        }
        let of = ["Session", "Start", "agent"].map(str::to_owned);
        let [entity_type, action, integration] = of;
        tally.finish(Kind { entity_type, action, integration })
    }

    #[test]
    fn quantiles_are_of_the_runs_and_keep_three_digits() {
        let budget = budget(10_000, &[(10, 989), (500, 10), (7_777, 1)], &[]);
        let Quantiles { p50_ms, p99_ms, p999_ms, max_ms } = budget.took;
        assert_eq!((p50_ms, p99_ms, p999_ms, max_ms), (10, 500, 500, 7_780));
        let rounded = [0, 9, 999, 1_000, 1_001, 123_456].map(|ms| rounded_up(ms, 3));
        assert_eq!(rounded, [0, 9, 999, 1_000, 1_010, 124_000]);
        assert_eq!(rounded_up(u64::MAX, 3), u64::MAX, "no number above it");
    }

    #[test]
    fn what_is_advised_follows_from_what_was_seen() {
        let advised = |budget_ms, took: &[(u64, u64)], killed: &[(&str, u64)]| {
            budget(budget_ms, took, killed).advice()
        };
        assert_eq!(advised(1_000, &[(500, 99)], &[]), Advice::TooFew);
        assert_eq!(advised(1_000, &[(500, 100)], &[]), Advice::Keep);
        assert_eq!(advised(700, &[(500, 100)], &[]), Advice::Raise(750));
        assert_eq!(advised(4_000, &[(500, 100)], &[]), Advice::Lower(750));
        assert_eq!(advised(300_000, &[(290_000, 100)], &[("guest", 3)]), Advice::Raise(600_000));
        assert_eq!(advised(300_000, &[(9_000, 100)], &[("host_http_call", 3)]), Advice::Hangs);
        // All are killed: nobody knows, however many they are.
        assert_eq!(advised(1_000, &[], &[("guest", 100)]), Advice::AllKilled);
        assert_eq!(advised(1_000, &[], &[("guest", 1)]), Advice::AllKilled);
        assert_eq!(advised(1_000, &[], &[]), Advice::TooFew);
    }
}
