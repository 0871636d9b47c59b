//! Judges what was observed of a member by what the host must do to it.

use std::fmt;
use std::time::Duration;

use sandglass_model::{EntityRef, Outcome, OutcomeKind, RunReport};

use crate::member::{Ending, Handler, Member, Must};
use crate::spec;

/// What was observed of one handler.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Its entity.
    pub entity: EntityRef,
    /// The host's report; `None` if the handler was never begun.
    pub report: Option<RunReport>,
    /// The actions that its entity took because the handler had ended. There must be exactly one.
    pub transitions: Vec<String>,
    /// The state of its entity after that.
    pub state: String,
    /// The time from the dispatch until its entity had settled, by a clock of the kit's own.
    pub took: Duration,
    /// Whether the host still had the handler in flight when its entity had settled.
    pub is_left: bool,
}

/// The judgment of one member.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The member's name.
    pub member: String,
    /// What was observed of its handlers, in their order; empty if the member could not run.
    pub observed: Vec<Observed>,
    /// What differs from what must be, one sentence each; empty if the host has passed.
    pub differs: Vec<String>,
}

/// The verdicts of several members, in their order.
#[derive(Clone, Debug, Default)]
pub struct Verdicts(pub(crate) Vec<Verdict>);

impl Verdict {
    pub(crate) fn of(member: &Member, observed: Result<Vec<Observed>, String>) -> Self {
        let name = member.name.to_string();
        let observed = match observed {
            Ok(observed) => observed,
            Err(why) => return Self { member: name, observed: Vec::new(), differs: vec![why] },
        };
        let of = |handler: &Handler| {
            observed.iter().find(|seen| seen.entity.entity_type() == handler.entity_type)
        };
        let differs = member.handlers.iter().flat_map(|handler| match of(handler) {
            Some(observed) => {
                let differs = differs(member, handler, observed);
                let many = member.handlers.len() > 1;
                let named = |why| if many { format!("{}: {why}", observed.entity) } else { why };
                differs.into_iter().map(named).collect()
            }
            None => vec![format!("nothing was observed of {}", handler.entity_type)],
        });
        Self { member: name, differs: differs.collect(), observed }
    }

    /// Whether the host did what it must.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.differs.is_empty()
    }
}

impl Verdicts {
    /// Whether the host did what it must to every member.
    #[must_use]
    pub fn all_passed(&self) -> bool {
        self.0.iter().all(Verdict::passed)
    }

    /// The verdict of each member.
    pub fn iter(&self) -> impl Iterator<Item = &Verdict> {
        self.0.iter()
    }

    /// The failed verdicts, one line each; empty if all have passed.
    #[must_use]
    pub fn failures(&self) -> String {
        let failed = self.iter().filter(|verdict| !verdict.passed());
        failed.map(|verdict| format!("{verdict}\n")).collect()
    }
}

/// Compares what was observed of a handler with what must be. The results do not name the handler.
fn differs(member: &Member, handler: &Handler, observed: &Observed) -> Vec<String> {
    let Some(report) = &observed.report else {
        return match &handler.must {
            Must::NeverBegin => Vec::new(),
            _ => vec!["it was never begun".to_owned()],
        };
    };
    let must = &handler.must;
    let mut differs = Vec::new();
    let kind = report.outcome.kind();
    if matches!(must, Must::NeverBegin) {
        differs.push(format!("it was begun, and ended {}", Ended(report)));
    } else if ending(must, report).is_none() {
        let ways: Vec<String> = must.endings().iter().map(ToString::to_string).collect();
        differs.push(format!("it ended {}, and must end {}", Ended(report), ways.join(", or ")));
    }
    let due = spec::action(kind);
    if observed.transitions != [due] {
        let took = observed.transitions.join(", ");
        let state = &observed.state;
        differs.push(format!(
            "its entity took [{took}] and is {state}, where its spec declares `{due}`"
        ));
    }
    differs.extend(exceeded_bounds(member, handler, report, observed));
    differs
}

fn exceeded_bounds(
    member: &Member,
    handler: &Handler,
    report: &RunReport,
    observed: &Observed,
) -> Vec<String> {
    let mut differs = Vec::new();
    let most = member.most_overrun;
    let overrun = Duration::from_micros(report.deadline.overrun_us);
    if overrun > most {
        differs.push(format!(
            "it was off the CPU {} ms after its deadline, and {} are allowed",
            overrun.as_millis(),
            most.as_millis()
        ));
    }
    // By a different clock than the host's, so that a host cannot pass by losing time.
    let split = report.time_split_us;
    let waited = Duration::from_micros(split.queue.saturating_add(split.compile));
    let took = observed.took.saturating_sub(waited);
    if took > handler.budget + most {
        differs.push(format!(
            "its entity took {} ms to settle, and {} are allowed",
            took.as_millis(),
            (handler.budget + most).as_millis()
        ));
    }
    let deadline = report.deadline;
    if matches!(report.outcome, Outcome::TimedOut(_)) && deadline.elapsed_ms <= deadline.budget_ms {
        differs.push(format!(
            "it was killed after {} ms of its {} ms",
            deadline.elapsed_ms, deadline.budget_ms
        ));
    }
    differs.extend(late_call(report));
    let (peak, allowed) = (report.peak_memory_bytes, handler.limits.memory_bytes);
    if peak > allowed {
        differs.push(format!("it had {peak} bytes of memory, and {allowed} are allowed"));
    }
    if observed.is_left {
        differs.push("its run was still in flight after its end".to_owned());
    }
    differs
}

/// The first host function that was called after the deadline; `None` if none was. If there are
/// many calls, stories leave out those in the middle. Calls after the deadline are the last ones,
/// so they are present.
fn late_call(report: &RunReport) -> Option<String> {
    // `budget_ms` is in whole milliseconds, but the budget that an asking handler passes on may
    // have a fraction.
    let deadline_us = report.deadline.budget_ms.saturating_add(1).saturating_mul(1000);
    let late = report.story.calls.iter().find(|call| call.started_us > deadline_us)?;
    Some(format!(
        "`{}` was begun after {} ms of its {} ms",
        late.name,
        late.started_us.div_ceil(1000),
        report.deadline.budget_ms
    ))
}

/// The declared ending that matches `report`; `None` if none does.
pub(crate) fn ending<'a>(must: &'a Must, report: &RunReport) -> Option<&'a Ending> {
    let (error, message) = report.outcome.error().unwrap_or_default();
    must.endings().iter().find(|ending| {
        ending.outcome == report.outcome.kind()
            && ending.error.is_none_or(|kind| kind == error)
            && message.contains(ending.says)
            && (ending.dying_spans.is_empty()
                || report
                    .dying_span
                    .as_ref()
                    .is_some_and(|span| ending.dying_spans.iter().any(|one| one == span)))
    })
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.outcome)?;
        if let Some(error) = self.error {
            write!(f, " ({error})")?;
        }
        if !self.says.is_empty() {
            write!(f, " saying `{}`", self.says)?;
        }
        if !self.dying_spans.is_empty() {
            write!(f, " in {}", self.dying_spans.join(" or "))?;
        }
        Ok(())
    }
}

/// Displays how a handler ended.
struct Ended<'a>(&'a RunReport);

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        write!(f, "{}", report.outcome.kind())?;
        if let Some((_, message)) = report.outcome.error()
            && report.outcome.kind() != OutcomeKind::TimedOut
        {
            write!(f, " ({message})")?;
        }
        match &report.dying_span {
            Some(span) => write!(f, " in {span}"),
            None => Ok(()),
        }
    }
}

/// One line: the member, and how its handlers ended or what differs.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.member)?;
        if !self.passed() {
            return write!(f, "DIFFERS: {}", self.differs.join("; "));
        }
        for (index, observed) in self.observed.iter().enumerate() {
            let Some(report) = &observed.report else { continue };
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}", report.outcome.kind())?;
            if let Some(span) = &report.dying_span {
                write!(f, " in {span}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use sandglass_model::{
        Call, CallOutcome, Cause, Completion, DeadlineReport, DispatchId, HandlerDeadlineExceeded,
        TimeSplit, TraceContext, Trap, TrapKind,
    };

    use super::*;

    const BUDGET_MS: u64 = 200;

    fn timed_out(span: &str) -> Outcome {
        Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
            integration: "Misbehaving".to_owned(),
            entity_type: "Misbehaving".to_owned(),
            entity_id: "1".to_owned(),
            action: spec::BEGIN.to_owned(),
            attempt: 1,
            budget_ms: BUDGET_MS,
            elapsed_ms: BUDGET_MS + 1,
            overrun_us: 80,
            owner: sandglass_model::DeadlineOwner::Handler,
            dying_span: span.to_owned(),
            dying_call: None,
            backtrace: Vec::new(),
            host_calls: 0,
            time_split_us: TimeSplit::default(),
            trace_id: TraceContext::root([1; 24]).trace_id,
        }))
    }

    fn report(outcome: Outcome, span: Option<&str>) -> RunReport {
        let (dispatch, trace) = (DispatchId::from_bytes([1; 16]), TraceContext::root([1; 24]));
        RunReport {
            deadline: DeadlineReport {
                budget_ms: BUDGET_MS,
                elapsed_ms: BUDGET_MS + 1,
                overrun_us: 80,
                ..DeadlineReport::default()
            },
            dying_span: span.map(str::to_owned),
            peak_memory_bytes: 65_536,
            ..RunReport::new(dispatch, trace, outcome, Cause::Deadline)
        }
    }

    /// What is observed of a handler that is killed as it must be.
    fn killed() -> Observed {
        Observed {
            entity: "Misbehaving/1".parse().expect("a name"),
            report: Some(report(timed_out("guest"), Some("guest"))),
            transitions: vec!["HandlerTimedOut".to_owned()],
            state: "TimedOut".to_owned(),
            took: Duration::from_millis(BUDGET_MS + 3),
            is_left: false,
        }
    }

    fn killed_with(change: impl FnOnce(&mut RunReport)) -> Observed {
        let mut observed = killed();
        change(observed.report.as_mut().expect("it ran"));
        observed
    }

    fn took(actions: &[&str]) -> Observed {
        let transitions = actions.iter().map(ToString::to_string).collect();
        Observed { transitions, ..killed() }
    }

    fn said(must: Must, observed: Observed) -> String {
        let member = Member::new("spin", "spins", [Handler::of(&b"(module)"[..], must)]);
        Verdict::of(&member, Ok(vec![observed])).to_string()
    }

    fn must_be_killed() -> Must {
        Ending::timed_out_in(["guest", "host_log"]).into()
    }

    #[test]
    fn a_handler_with_a_permitted_ending_passes_and_its_verdict_names_the_ending() {
        assert_eq!(said(must_be_killed(), killed()), "spin: timed_out in guest");
        let never = Observed { report: None, transitions: Vec::new(), ..killed() };
        assert_eq!(said(Must::NeverBegin, never), "spin: ");
    }

    /// Checks that each of `cases` differs in one thing, and that the verdict contains its text.
    fn assert_differs<const N: usize>(cases: [(Observed, &str); N]) {
        for (observed, differs) in cases {
            let said = said(must_be_killed(), observed);
            assert!(said.starts_with("spin: DIFFERS: "), "{said}");
            assert!(said.contains(differs), "{said}\n{differs}");
            assert!(!said.contains(';'), "nothing else differs: {said}");
        }
    }

    #[test]
    fn each_wrong_ending_and_transition_is_reported() {
        let ended = |outcome: Outcome, span: Option<&str>, action: &str| Observed {
            report: Some(report(outcome, span)),
            ..took(&[action])
        };
        let trap = Trap { kind: TrapKind::Unreachable, message: "it gave up".to_owned() };
        assert_differs([
            (
                ended(Outcome::Completed(Completion::default()), None, "Finish"),
                "it ended completed, and must end timed_out in guest or host_log",
            ),
            (
                ended(Outcome::Trapped(trap), Some("guest"), "Fail"),
                "it ended trapped (it gave up) in guest, and must end timed_out",
            ),
            (
                ended(timed_out("host_http_call"), Some("host_http_call"), "HandlerTimedOut"),
                "it ended timed_out in host_http_call, and must end timed_out in guest or host_log",
            ),
            (Observed { report: None, ..killed() }, "it was never begun"),
            (
                Observed { state: "Busy".to_owned(), ..took(&[]) },
                "its entity took [] and is Busy, where its spec declares `HandlerTimedOut`",
            ),
            (took(&["Finish"]), "its entity took [Finish] and is TimedOut"),
            (took(&["HandlerTimedOut", "Fail"]), "its entity took [HandlerTimedOut, Fail]"),
        ]);
    }

    #[test]
    fn each_exceeded_bound_is_reported() {
        assert_differs([
            (
                killed_with(|report| report.deadline.overrun_us = 5_000_001),
                "it was off the CPU 5000 ms after its deadline, and 5000 are allowed",
            ),
            (
                Observed { took: Duration::from_millis(5_201), ..killed() },
                "its entity took 5201 ms to settle, and 5200 are allowed",
            ),
            (
                killed_with(|report| report.deadline.elapsed_ms = BUDGET_MS),
                "it was killed after 200 ms of its 200 ms",
            ),
            (
                killed_with(|report| report.peak_memory_bytes = (64 << 20) + 1),
                "it had 67108865 bytes of memory, and 67108864 are allowed",
            ),
            (Observed { is_left: true, ..killed() }, "its run was still in flight after its end"),
        ]);
    }

    #[test]
    fn a_wait_for_a_slot_or_the_compiler_is_not_an_overrun() {
        let split = TimeSplit { queue: 10_000_000, compile: 9_000_000, ..TimeSplit::default() };
        let waited = killed_with(|report| report.time_split_us = split);
        let observed = Observed { took: Duration::from_secs(20), ..waited };
        assert_eq!(said(must_be_killed(), observed), "spin: timed_out in guest");
    }

    #[test]
    fn an_ending_is_matched_by_its_error_and_its_message() {
        let trapped = |kind, message: &str| Observed {
            report: Some(report(
                Outcome::Trapped(Trap { kind, message: message.to_owned() }),
                Some("guest"),
            )),
            ..took(&["Fail"])
        };
        let must = || Must::from(Ending::trapped("exit").saying("code 7"));
        assert_eq!(said(must(), trapped(TrapKind::Exit, "with code 7")), "spin: trapped in guest");
        for (kind, message) in [(TrapKind::Exit, "with code 8"), (TrapKind::Other, "code 7")] {
            let said = said(must(), trapped(kind, message));
            assert!(said.contains("must end trapped (exit) saying `code 7`"), "{said}");
        }
    }

    #[test]
    fn a_function_that_was_begun_after_the_deadline_is_reported() {
        let begun_after = |started_us| {
            let call = |started_us| Call {
                name: Cow::Borrowed("acme.find"),
                started_us,
                duration_us: 1,
                outcome: CallOutcome::Ok,
                error: None,
            };
            let calls = vec![call(0), call(started_us)];
            said(must_be_killed(), killed_with(|report| report.story.calls = calls))
        };
        assert_eq!(begun_after(200_000), "spin: timed_out in guest");
        let late = begun_after(207_100);
        assert_eq!(late, "spin: DIFFERS: `acme.find` was begun after 208 ms of its 200 ms");
    }

    #[test]
    fn a_handler_that_must_never_begin_and_does_is_reported() {
        let said = said(Must::NeverBegin, killed());
        assert!(said.contains("it was begun, and ended timed_out in guest"), "{said}");
    }

    #[test]
    fn of_several_handlers_each_that_differs_or_is_missing_is_named() {
        let handler = |name| {
            Handler::of(&b"(module)"[..], Ending::timed_out_in(["guest"]).into()).entity(name)
        };
        let two = Member::new("two", "are two", [handler("A"), handler("B")]);
        let seen = |name: &str, is_left| Observed {
            entity: format!("{name}/1").parse().expect("a name"),
            is_left,
            ..killed()
        };
        let said = |observed| Verdict::of(&two, Ok(observed)).to_string();
        assert_eq!(
            said(vec![seen("A", false), seen("B", true)]),
            "two: DIFFERS: B/1: its run was still in flight after its end"
        );
        assert_eq!(said(vec![seen("A", false)]), "two: DIFFERS: nothing was observed of B");
        assert_eq!(
            said(vec![seen("A", false), seen("B", false)]),
            "two: timed_out in guest, timed_out in guest"
        );
    }
}
