//! Compares the budgets of handlers with the times that a journal records, and advises on them.

use std::collections::BTreeMap;

use sandglass_model::{DeadlineOwner, DispatchId, Dispatched, Ended, Event, OutcomeKind, Record};

/// Fewest handler executions that a suggestion needs: with fewer, the 99th percentile is
/// meaningless.
pub const RUNS_MIN: u64 = 100;
/// Most kinds of handlers that are tracked, more than a person reads. Ends of other kinds are only
/// counted.
pub const ROWS_MAX: usize = 1_000;
/// Most host functions by which the kills of one kind are counted; the rest are counted as `other`.
const SPANS_MAX: usize = 64;
/// Most handlers in flight that are tracked, more than a host ever has. Ends of other handlers are
/// only counted.
const OPEN_MAX: usize = 1 << 20;
/// Significant decimal digits of a recorded time, so that a kind has at most a few thousand
/// distinct times.
const DIGITS_KEPT: u32 = 3;
/// The suggested budget, in percent of the 99.9th percentile.
const ROOM_PERCENT: u64 = 150;
/// A budget longer than this many times the suggested one is called too long, because a handler
/// that hangs is detected that much later.
const TOO_LONG: u64 = 4;

/// The budget of one kind of handler, and the times that its executions took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The kind of handler.
    pub of: Kind,
    /// The budget in milliseconds, as last recorded: the one that the spec declares, or the
    /// default.
    pub budget_ms: u64,
    /// Whether the spec declares none, so that the default applies.
    pub is_default: bool,
    /// Executions that ended on their own, or at the deadline of this budget.
    pub runs: u64,
    /// How long these executions took. A killed one counts with the time until its kill, which is
    /// at least its budget.
    pub took: Quantiles,
    /// How long the executions took that ended on their own.
    pub took_by_itself: Quantiles,
    /// Whether these times are estimated from the bounds of histogram buckets.
    pub is_estimated: bool,
    /// Executions that were killed at the deadline of this budget, counted by what was running.
    pub killed: BTreeMap<String, u64>,
}

/// A kind of handler: executions of one kind share a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The type of its entities.
    pub entity_type: String,
    /// The action that dispatches it.
    pub action: String,
    /// The integration.
    pub integration: String,
}

/// Quantiles of times in milliseconds, rounded up to three significant digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// The median.
    pub p50_ms: u64,
    /// The 99th percentile.
    pub p99_ms: u64,
    /// The 99.9th percentile.
    pub p999_ms: u64,
    /// The maximum.
    pub max_ms: u64,
}

impl Quantiles {
    /// Returns the quantiles with each capped at `most_ms`.
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

/// What to do about a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// There are too few executions to advise.
    TooFew,
    /// Every execution was killed, so the time that one needs is unknown: either the budget is too
    /// small, or what they waited for hung. [`Budget::killed`] shows what was running.
    AllKilled,
    /// The budget fits.
    Keep,
    /// Raise it to this many milliseconds: executions come too close to it or are killed by it.
    Raise(u64),
    /// Lower it to this many milliseconds, so that a handler that hangs is detected sooner.
    Lower(u64),
    /// The budget fits the executions that end on their own. The killed ones hang, and more time
    /// would not help them.
    Hangs,
}

impl Budget {
    /// The number of killed executions.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.killed.values().sum()
    }

    /// What to do about this budget. One and a half times the 99.9th percentile leaves enough
    /// margin. If executions are killed although the 99th percentile of the others is at most half
    /// of the budget, the killed ones hang.
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
            0 => self.advise_fit(),
            _ if is_far && by_itself.max_ms > 0 => Advice::Hangs,
            _ => Advice::Raise(round_up(self.budget_ms.saturating_mul(2), 2)),
        }
    }

    fn advise_fit(&self) -> Advice {
        let wanted = self.took.p999_ms.saturating_mul(ROOM_PERCENT) / 100;
        let wanted = round_up(wanted.max(1), 2);
        if wanted > self.budget_ms {
            Advice::Raise(wanted)
        } else if wanted.saturating_mul(TOO_LONG) < self.budget_ms {
            Advice::Lower(wanted)
        } else {
            Advice::Keep
        }
    }
}

/// Folds the records of a journal in order.
#[derive(Debug, Default)]
pub struct Survey {
    kinds: BTreeMap<Kind, Tally>,
    open: BTreeMap<(DispatchId, u32), Kind>,
    uncounted: u64,
}

/// The result of a [`Survey`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Sorted by kind.
    pub budgets: Vec<Budget>,
    /// Ends that are counted in no budget, because there are too many kinds or handlers in flight.
    pub uncounted: u64,
}

impl Survey {
    /// Applies the next record.
    pub fn feed(&mut self, record: &Record) {
        let Some(entity) = &record.entity else { return };
        match &record.event {
            Event::Dispatched(dispatched) => {
                let kind = Kind {
                    entity_type: entity.entity_type().to_owned(),
                    action: dispatched.action.clone(),
                    integration: dispatched.integration.clone(),
                };
                self.add_dispatch(kind, dispatched);
            }
            Event::Ended(ended) => {
                let of = self.open.remove(&(ended.dispatch, ended.attempt));
                match of.and_then(|kind| self.kinds.get_mut(&kind)) {
                    Some(tally) => tally.add_end(ended),
                    None => self.uncounted += 1,
                }
            }
            _ => {}
        }
    }

    fn add_dispatch(&mut self, kind: Kind, dispatched: &Dispatched) {
        let is_known = self.kinds.contains_key(&kind);
        if (!is_known && self.kinds.len() >= ROWS_MAX) || self.open.len() >= OPEN_MAX {
            return;
        }
        let tally = self.kinds.entry(kind.clone()).or_default();
        // A budget that an asker or an operator sets is not the one that the spec declares.
        if dispatched.owner == DeadlineOwner::Handler && dispatched.retried.is_none() {
            tally.declare(dispatched.budget_ms, dispatched.budget_defaulted);
        }
        self.open.insert((dispatched.dispatch, dispatched.attempt), kind);
    }

    /// Returns the budgets of all kinds whose declared budget was seen.
    #[must_use]
    pub fn finish(self) -> Budgets {
        let seen = self.kinds.into_iter().filter(|(_, tally)| tally.budget_ms > 0);
        let budgets = seen.map(|(of, tally)| tally.finish(of)).collect();
        Budgets { budgets, uncounted: self.uncounted }
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
    fn declare(&mut self, budget_ms: u64, is_default: bool) {
        if self.budget_ms != budget_ms {
            // The kills so far, and their times, belong to another budget.
            self.killed.clear();
            self.all = self.by_itself.clone();
        }
        (self.budget_ms, self.is_default) = (budget_ms, is_default);
    }

    fn add_end(&mut self, ended: &Ended) {
        let took = ended.deadline.elapsed_ms;
        match ended.outcome.kind() {
            OutcomeKind::Completed | OutcomeKind::Failed => {
                self.by_itself.add(took);
                self.all.add(took);
            }
            OutcomeKind::TimedOut if self.is_own(ended) => {
                self.all.add(took);
                let span = ended.dying_span.as_deref().unwrap_or("guest");
                let is_listed = self.killed.contains_key(span) || self.killed.len() < SPANS_MAX;
                let span = if is_listed { span } else { "other" };
                *self.killed.entry(span.to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Whether this budget is the one that ran out.
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

/// A histogram of times in milliseconds.
#[derive(Clone, Debug, Default)]
struct Times {
    counts: BTreeMap<u64, u64>,
    count: u64,
}

impl Times {
    fn add(&mut self, millis: u64) {
        *self.counts.entry(round_up(millis, DIGITS_KEPT)).or_default() += 1;
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

    /// Returns the quantile at `of_thousand` / 1,000: 500 is the median.
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

/// Rounds `number` up to at most `digits` significant digits.
fn round_up(number: u64, digits: u32) -> u64 {
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
        let rounded = [0, 9, 999, 1_000, 1_001, 123_456].map(|ms| round_up(ms, 3));
        assert_eq!(rounded, [0, 9, 999, 1_000, 1_010, 124_000]);
        assert_eq!(round_up(u64::MAX, 3), u64::MAX, "no number above it");
    }

    #[test]
    fn advice_follows_from_times_and_kills() {
        let advised = |budget_ms, took: &[(u64, u64)], killed: &[(&str, u64)]| {
            budget(budget_ms, took, killed).advice()
        };
        assert_eq!(advised(1_000, &[(500, 99)], &[]), Advice::TooFew);
        assert_eq!(advised(1_000, &[(500, 100)], &[]), Advice::Keep);
        assert_eq!(advised(700, &[(500, 100)], &[]), Advice::Raise(750));
        assert_eq!(advised(4_000, &[(500, 100)], &[]), Advice::Lower(750));
        assert_eq!(advised(300_000, &[(290_000, 100)], &[("guest", 3)]), Advice::Raise(600_000));
        assert_eq!(advised(300_000, &[(9_000, 100)], &[("host_http_call", 3)]), Advice::Hangs);
        // If all are killed, more executions do not help.
        assert_eq!(advised(1_000, &[], &[("guest", 100)]), Advice::AllKilled);
        assert_eq!(advised(1_000, &[], &[("guest", 1)]), Advice::AllKilled);
        assert_eq!(advised(1_000, &[], &[]), Advice::TooFew);
    }
}
