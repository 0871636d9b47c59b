//! Formats the parts of a handler's report: its frames, its host calls, its requests and where its
//! time went. Used for handlers that have just ended and for recorded ones.

use std::fmt::Write as _;

use sandglass_model::{
    Call, CallOutcome, DeadlineReport, Frame, FunctionCalls, HostCalls, OutgoingRequest, Overrun,
    RequestOutcome, Story, TimeSplit,
};
use sandglass_source::{printable, shortened};

use crate::duration::{format_micros, format_millis_exactly};

/// Most frames that are shown. The frame of interest is among the first few, or, behind those of a
/// library's panic, a dozen further on.
const MAX_FRAMES: usize = 16;

/// Most host calls that a report lists one by one: what led to the end, on half a screen.
const LAST_CALLS: usize = 8;

/// Most characters of a handler's input or result that are shown; JSON has all of them.
const VALUE_MAX_CHARS: usize = 400;

/// The start of `value`, escaped.
pub(crate) fn excerpt(value: &impl ToString) -> String {
    shortened(&printable(&value.to_string()), VALUE_MAX_CHARS).into_owned()
}

/// `outcome`, and where known, after what part of the budget and in which span.
pub(crate) fn ending(outcome: &str, times_ms: Option<(u64, u64)>, span: Option<&str>) -> String {
    let mut line = outcome.to_owned();
    if let Some((elapsed, budget)) = times_ms {
        let (elapsed, budget) = (format_millis_exactly(elapsed), format_millis_exactly(budget));
        let _ = write!(line, " after {elapsed} of {budget}");
    }
    if let Some(span) = span {
        let _ = write!(line, ", in {span}");
    }
    line
}

/// One line for each of the innermost frames.
pub(crate) fn frames(frames: &[Frame]) -> Vec<String> {
    let mut lines: Vec<_> = frames.iter().take(MAX_FRAMES).map(frame).collect();
    if frames.len() > MAX_FRAMES {
        lines.push(format!("and {} more frames", frames.len() - MAX_FRAMES));
    }
    lines
}

fn frame(frame: &Frame) -> String {
    let function = frame.function.as_deref().unwrap_or("a function without a name");
    let mut line = printable(function).into_owned();
    match (&frame.file, frame.line) {
        (Some(file), Some(number)) => {
            let _ = write!(line, " ({}:{number})", printable(file));
        }
        (Some(file), None) => {
            let _ = write!(line, " ({})", printable(file));
        }
        (None, _) => {
            let _ = write!(line, " (offset {:#x})", frame.offset);
        }
    }
    line
}

/// The innermost frame that is likely the author's own: one whose file belongs neither to a
/// toolchain nor to a library.
pub(crate) fn own_frame(frames: &[Frame]) -> Option<String> {
    let foreign = ["/rustc/", "/.cargo/registry/", "/lib/rustlib/", "/wasi-libc/"];
    let is_own = |file: &String| !foreign.iter().any(|place| file.contains(place));
    let own = frames.iter().find(|frame| frame.file.as_ref().is_some_and(is_own));
    own.map(frame)
}

/// How to build the guest so that its frames show names and lines, if they do not.
pub(crate) fn debug_info_hint(frames: &[Frame]) -> Option<&'static str> {
    if frames.is_empty() || frames.iter().any(|frame| frame.file.is_some()) {
        return None;
    }
    Some(if frames.iter().all(|frame| frame.function.is_none()) {
        "the guest has neither function names nor line numbers: do not strip it, and build it with \
         debug information (Rust: `debug = \"line-tables-only\"`, C: `-g`, AssemblyScript: `--debug`)"
    } else {
        "the guest has no line numbers: build it with debug information (Rust: \
         `debug = \"line-tables-only\"`, C: `-g`), and do not strip it"
    })
}

/// The phases of a handler with their times, in one line.
pub(crate) fn time(split: &TimeSplit) -> String {
    let parts = [
        ("queue", split.queue),
        ("compile", split.compile),
        ("instantiate", split.instantiate),
        ("guest", split.guest),
        ("host", split.host),
        ("teardown", split.teardown),
    ];
    let parts = parts.iter().map(|(name, took)| format!("{name} {}", format_micros(*took)));
    parts.collect::<Vec<_>>().join(", ")
}

/// One line for each host function that was called.
pub(crate) fn calls_by_function(calls: &HostCalls) -> Vec<String> {
    let line = |calls: &FunctionCalls| {
        let unfinished = if calls.in_flight { ", unfinished" } else { "" };
        let took = format_micros(calls.total_us);
        let name = printable(&calls.name);
        let parked = match calls.parked.count {
            0 => String::new(),
            count => format!(
                "; {count} waited {} for the host's lease",
                format_micros(calls.parked.total_us)
            ),
        };
        format!("{name} x{}, {took}{unfinished}{parked}", calls.count)
    };
    calls.by_function.iter().map(line).collect()
}

/// One line for each limit that was breached without ending the handler.
pub(crate) fn overruns(overruns: &[Overrun]) -> Vec<String> {
    let line = |overrun: &Overrun| {
        let Overrun { limit, host_call, threshold_ms, observed_ms, times, .. } = overrun;
        let (allowed, took) =
            (format_millis_exactly(*threshold_ms), format_millis_exactly(*observed_ms));
        let by = host_call.as_ref().map(|call| format!(" by {}", printable(call)));
        let times = if *times > 1 { format!(", {times} times") } else { String::new() };
        format!("{limit} of {allowed} breached{}: {took}{times}", by.unwrap_or_default())
    };
    overruns.iter().map(line).collect()
}

/// One line for each host call, in columns.
pub(crate) fn calls(story: &Story) -> Vec<String> {
    let width = story.calls.iter().map(|call| printable(&call.name).chars().count()).max();
    let line = |call: &Call| {
        let (at, took) = (format_micros(call.started_us), format_micros(call.duration_us));
        let outcome = match call.outcome {
            CallOutcome::Ok => "",
            CallOutcome::Failed => match &call.error {
                Some(error) => &format!("  failed: {}", printable(error)),
                None => "  failed",
            },
            CallOutcome::TimedOut => "  timed out by itself",
            CallOutcome::CutShort => {
                "  cut short, because the soft deadline passed or a stop was requested"
            }
            CallOutcome::Unfinished => "  unfinished",
        };
        let name = printable(&call.name);
        format!("{at:>8}  {name:width$}  {took:>8}{outcome}", width = width.unwrap_or_default())
    };
    let mut lines: Vec<_> = story.calls.iter().map(line).collect();
    if story.calls_omitted > 0 {
        let place = lines.len() / 2;
        lines.insert(place, format!("{:>8}  ({} more)", "", story.calls_omitted));
    }
    lines
}

/// One line for each of the last host calls.
pub(crate) fn last_calls(story: &Story) -> Vec<String> {
    let left_out = story.calls.len().saturating_sub(LAST_CALLS);
    let last = Story { calls: story.calls[left_out..].to_vec(), ..Story::default() };
    let earlier = story.calls_omitted.saturating_add(left_out as u64);
    let earlier = (earlier > 0).then(|| format!("{:>8}  ({earlier} earlier)", ""));
    earlier.into_iter().chain(calls(&last)).collect()
}

/// One line for each of the last host calls that failed, with the reason.
pub(crate) fn failed_calls(story: &Story) -> Vec<String> {
    let line = |call: &Call| {
        let error = call.error.as_ref()?;
        Some(format!("{}: {}", printable(&call.name), printable(error)))
    };
    let mut lines: Vec<_> = story.calls.iter().filter_map(line).collect();
    let left_out = lines.len().saturating_sub(LAST_CALLS);
    lines.drain(..left_out);
    earlier(left_out as u64).into_iter().chain(lines).collect()
}

/// What a stopped handler waited for, since when, and how much of its budget remained then.
pub(crate) fn last_wait(story: &Story, deadline: &DeadlineReport, span: &str) -> String {
    let elapsed_us = deadline.elapsed_ms.saturating_mul(1_000);
    let left = |at_us: u64| {
        let left = deadline.budget_ms.saturating_sub(at_us / 1_000);
        format!(
            "{} of {} left",
            format_millis_exactly(left),
            format_millis_exactly(deadline.budget_ms)
        )
    };
    let last = story.calls.last();
    let is_unfinished = |call: &&Call| call.outcome == CallOutcome::Unfinished;
    let unfinished = story.calls.iter().filter(is_unfinished);
    // A guest with tasks may execute its own code while calls are in flight.
    if let Some(call) = unfinished.clone().min_by_key(|call| call.started_us)
        && span != "guest"
    {
        let (name, took) = (printable(&call.name), format_micros(call.duration_us));
        let others = match unfinished.count() - 1 {
            0 => String::new(),
            others => format!(", with {others} more calls in flight"),
        };
        return format!("{took} in {name}, called with {}{others}", left(call.started_us));
    }
    let since = last.map_or(0, |call| call.started_us.saturating_add(call.duration_us));
    let own = format_micros(elapsed_us.saturating_sub(since));
    match last {
        Some(call) => format!(
            "for no host call: {own} in its own code, since {} returned with {}",
            printable(&call.name),
            left(since)
        ),
        None if span == "instantiate" => {
            format!("for no host call: {own} in code that runs before its handler")
        }
        None => format!("for no host call: {own} in its own code"),
    }
}

/// One line for each outgoing request.
pub(crate) fn requests(story: &Story) -> Vec<String> {
    let line = |one: &OutgoingRequest| {
        let what = format!("{} {}{}", one.method, one.host, one.path);
        let (at, took) = (format_micros(one.started_us), format_micros(one.duration_us));
        let why = one.error.as_ref().map(|why| format!(": {}", printable(why)));
        let why = why.unwrap_or_default();
        if one.outcome == RequestOutcome::Refused {
            return format!("{}  refused, never sent (at {at}){why}", printable(&what));
        }
        let outcome = match (one.outcome, one.status) {
            (RequestOutcome::Answered, Some(status)) => format!("{status} after {took}"),
            (outcome, status) => {
                let head = status.map(|status| format!("answered {status}, body "));
                let outcome = outcome.as_str().replace('_', " ");
                format!("{}{outcome} after {took}", head.unwrap_or_default())
            }
        };
        format!("{}  sent at {at}, {outcome}{why}", printable(&what))
    };
    earlier(story.requests_omitted).into_iter().chain(story.requests.iter().map(line)).collect()
}

/// A line about entries that a list leaves out at its start, if there are any.
pub(crate) fn earlier(omitted: u64) -> Option<String> {
    (omitted > 0).then(|| format!("({omitted} earlier)"))
}

/// Pairs `name` with the first of `lines`, and an empty name with each further one.
pub(crate) fn labeled(
    name: &'static str,
    lines: impl IntoIterator<Item = String>,
) -> impl Iterator<Item = (&'static str, String)> {
    std::iter::once(name).chain(std::iter::repeat("")).zip(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_body_hung_is_shown_with_its_status() {
        let request = |outcome, status| OutgoingRequest {
            method: "GET".to_owned(),
            host: "x".to_owned(),
            path: "/".to_owned(),
            started_us: 12,
            duration_us: 2_500_000,
            outcome,
            status,
            error: None,
        };
        let all = [
            request(RequestOutcome::Answered, Some(302)),
            request(RequestOutcome::Unfinished, Some(200)),
            request(RequestOutcome::GivenUp, None),
            request(RequestOutcome::Refused, None),
        ];
        let lines = requests(&Story { requests: all.into(), ..Story::default() });
        assert_eq!(lines[0], "GET x/  sent at 12 us, 302 after 2.50 s");
        assert_eq!(lines[1], "GET x/  sent at 12 us, answered 200, body unfinished after 2.50 s");
        assert_eq!(lines[2], "GET x/  sent at 12 us, given up after 2.50 s");
        assert_eq!(lines[3], "GET x/  refused, never sent (at 12 us)");
    }

    #[test]
    fn an_unfinished_call_is_last_and_names_of_guests_are_escaped() {
        let call = |name: &str, started_us, outcome| Call {
            name: name.to_owned().into(),
            started_us,
            duration_us: 2_500_000,
            outcome,
            error: None,
        };
        let story = Story {
            calls: vec![
                call("host_log", 12, CallOutcome::Ok),
                call("x\u{1b}", 90_000, CallOutcome::Unfinished),
            ],
            calls_omitted: 7,
            ..Story::default()
        };
        let lines = calls(&story);
        assert_eq!(lines[0], "   12 us  host_log    2.50 s");
        assert_eq!(lines[1], "          (7 more)");
        assert!(lines[2].ends_with("2.50 s  unfinished") && !lines[2].contains('\u{1b}'));
    }
}
