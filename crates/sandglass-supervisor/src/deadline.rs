//! How long a handler may run: the budget of a dispatch, and the deadline that it becomes when the
//! guest may run.

use std::time::Duration;

use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_model::report::micros;
use sandglass_model::{DeadlineOwner, Monotonic};

/// The part of a budget that is left when people are notified that a handler still runs, if the
/// integration declares no soft deadline: a fifth, so 80 % are used. That is late enough to be rare
/// with a budget that fits, and early enough to look at a handler that is still alive.
const LEFT_WHEN_MOSTLY_USED: u32 = 5;

/// The wall-clock budget of one handler run.
///
/// It starts when the guest may run: after queueing and compiling, before instantiation. The
/// boundary checks it by the monotonic clock at every host call, and the ticker enforces it in the
/// guest's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchDeadline {
    budget: Duration,
    not_after: Option<Monotonic>,
}

impl DispatchDeadline {
    /// A budget of `budget`, clamped to at least 1 ms and at most
    /// [`MAX_BUDGET_MS`], in whole milliseconds (rounded down).
    #[must_use]
    pub fn after(budget: Duration) -> Self {
        let millis = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        Self { budget: Duration::from_millis(millis.clamp(1, MAX_BUDGET_MS)), not_after: None }
    }

    /// Limits the budget by `parent`, the deadline of the dispatch that asks for this handler, on the
    /// host's clock. The earlier one holds; if both are equal, the handler's own.
    #[must_use]
    pub fn within(self, parent: Monotonic) -> Self {
        Self { not_after: Some(self.not_after.map_or(parent, |held| held.min(parent))), ..self }
    }

    /// The handler's own budget.
    #[must_use]
    pub const fn budget(&self) -> Duration {
        self.budget
    }

    /// The time that the parent dispatch has left at `now`; unbounded if there is no parent.
    pub fn parent_has_left(&self, now: Monotonic) -> Duration {
        self.not_after.map_or(Duration::MAX, |parent| parent.since(now))
    }

    /// The deadline of a run that waited since `from` until its parent's deadline had passed. `None`
    /// if there is no parent.
    pub fn of_parent(&self, from: Monotonic) -> Option<StartedDeadline> {
        let (at, owner) = (self.not_after?, DeadlineOwner::Parent);
        Some(StartedDeadline { start: from, at, budget: at.since(from), owner })
    }

    /// Starts the budget.
    pub fn start(self, now: Monotonic) -> StartedDeadline {
        let own = now.after(self.budget);
        let (at, budget, owner) = match self.not_after {
            Some(parent) if parent < own => (parent, parent.since(now), DeadlineOwner::Parent),
            _ => (own, self.budget, DeadlineOwner::Handler),
        };
        StartedDeadline { start: now, at, budget, owner }
    }
}

/// A deadline whose budget has begun.
#[derive(Clone, Copy, Debug)]
pub struct StartedDeadline {
    /// When the budget began.
    pub start: Monotonic,
    /// When it ends.
    pub at: Monotonic,
    /// How long it is.
    pub budget: Duration,
    /// Whose deadline it is.
    pub owner: DeadlineOwner,
}

impl StartedDeadline {
    /// The soft deadline, `before` the deadline. It is never earlier than the start.
    pub fn soft(&self, before: Duration) -> Monotonic {
        self.start.after(self.at.since(self.start).saturating_sub(before))
    }

    /// When people are notified that most of the budget is used, if there is no soft deadline.
    pub fn mostly_used(&self) -> Monotonic {
        let whole = self.at.since(self.start);
        self.start.after(whole - whole / LEFT_WHEN_MOSTLY_USED)
    }

    /// The budget, in milliseconds.
    pub fn budget_ms(&self) -> u64 {
        u64::try_from(self.budget.as_millis()).unwrap_or(u64::MAX)
    }

    /// Time from the start to `now` in milliseconds, rounded up, so that it exceeds the budget as soon
    /// as the deadline has passed.
    pub fn elapsed_ms(&self, now: Monotonic) -> u64 {
        u64::try_from(now.since(self.start).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// How late `now` is, in microseconds; 0 before the deadline.
    pub fn overrun_us(&self, now: Monotonic) -> u64 {
        micros(now.since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Monotonic = Monotonic::from_nanos(7);

    #[test]
    fn the_smaller_of_budget_and_parent_holds() {
        let deadline = DispatchDeadline::after(Duration::from_millis(20));
        let own = deadline.within(START.after(Duration::from_millis(30))).start(START);
        assert_eq!((own.owner, own.budget_ms()), (DeadlineOwner::Handler, 20));
        let parents = deadline.within(START.after(Duration::from_millis(10))).start(START);
        assert_eq!((parents.owner, parents.budget_ms()), (DeadlineOwner::Parent, 10));
    }

    #[test]
    fn the_inner_scope_wins_a_tie() {
        let deadline = DispatchDeadline::after(Duration::from_millis(20));
        let tie = deadline.within(START.after(Duration::from_millis(20))).start(START);
        assert_eq!(tie.owner, DeadlineOwner::Handler);
    }

    #[test]
    fn a_parent_that_has_expired_leaves_nothing() {
        let late = DispatchDeadline::after(Duration::from_secs(1)).within(START);
        let started = late.start(START.after(Duration::from_millis(1)));
        assert_eq!((started.budget_ms(), started.at), (0, START));
    }

    #[test]
    fn a_warning_comes_before_the_deadline_and_not_before_the_start() {
        let started = DispatchDeadline::after(Duration::from_millis(20)).start(START);
        let soft = started.soft(Duration::from_millis(5));
        assert_eq!(soft, START.after(Duration::from_millis(15)));
        assert_eq!(started.soft(Duration::from_secs(1)), START);
    }

    #[test]
    fn most_of_a_budget_is_used_after_four_fifths_of_it() {
        let deadline = DispatchDeadline::after(Duration::from_millis(20));
        let own = deadline.start(START);
        assert_eq!(own.mostly_used(), START.after(Duration::from_millis(16)));
        let parents = deadline.within(START.after(Duration::from_millis(10))).start(START);
        assert_eq!(parents.mostly_used(), START.after(Duration::from_millis(8)));
        let longest = DispatchDeadline::after(Duration::MAX).start(START);
        assert!(longest.mostly_used() < longest.at);
    }

    #[test]
    fn elapsed_is_above_the_budget_as_soon_as_the_deadline_has_passed() {
        let started = DispatchDeadline::after(Duration::from_millis(20)).start(START);
        let just_past = started.at.after(Duration::from_nanos(1));
        assert_eq!(started.elapsed_ms(started.at), 20);
        assert_eq!(started.elapsed_ms(just_past), 21);
    }

    #[test]
    fn budgets_are_clamped() {
        assert_eq!(DispatchDeadline::after(Duration::ZERO).budget(), Duration::from_millis(1));
        let most = Duration::from_millis(MAX_BUDGET_MS);
        assert_eq!(DispatchDeadline::after(Duration::MAX).budget(), most);
    }
}
