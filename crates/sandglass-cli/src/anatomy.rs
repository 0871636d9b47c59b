//! The parts of a run in words: where it was, what it called and asked for, and where
//! its time went. Used by reports of runs that have just ended and of recorded ones.

use std::fmt::Write as _;

use sandglass_model::{
    Call, CallOutcome, Frame, FunctionCalls, HostCalls, OutgoingRequest, Overrun, RequestOutcome,
    Story, TimeSplit,
};
use sandglass_source::printable;

use crate::duration::{exact_millis, measured_micros};

/// Frames that the text shows: where a run died is in the first few, or, where a library's
/// panic stands before it, a dozen further on.
const MAX_FRAMES: usize = 16;

/// Where the guest was, a line for each of the innermost frames.
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

/// Where the time went, in a line.
pub(crate) fn time(split: &TimeSplit) -> String {
    let parts = [
        ("queue", split.queue),
        ("compile", split.compile),
        ("instantiate", split.instantiate),
        ("guest", split.guest),
        ("host", split.host),
        ("teardown", split.teardown),
    ];
    let parts = parts.iter().map(|(name, took)| format!("{name} {}", measured_micros(*took)));
    parts.collect::<Vec<_>>().join(", ")
}

/// The host calls by function, a line each.
pub(crate) fn sums(calls: &HostCalls) -> Vec<String> {
    let line = |calls: &FunctionCalls| {
        let unfinished = if calls.in_flight { ", unfinished" } else { "" };
        let took = measured_micros(calls.total_us);
        format!("{} x{}, {took}{unfinished}", printable(&calls.name), calls.count)
    };
    calls.by_function.iter().map(line).collect()
}

/// The limits inside of a run that were breached, a line each.
pub(crate) fn overruns(overruns: &[Overrun]) -> Vec<String> {
    let line = |overrun: &Overrun| {
        let Overrun { limit, host_call, threshold_ms, observed_ms, times, .. } = overrun;
        let (allowed, took) = (exact_millis(*threshold_ms), exact_millis(*observed_ms));
        let by = host_call.as_ref().map(|call| format!(" by {}", printable(call)));
        let times = if *times > 1 { format!(", {times} times") } else { String::new() };
        format!("{limit} of {allowed} breached{}: {took}{times}", by.unwrap_or_default())
    };
    overruns.iter().map(line).collect()
}

/// The host calls one by one, in columns.
pub(crate) fn calls(story: &Story) -> Vec<String> {
    let width = story.calls.iter().map(|call| printable(&call.name).chars().count()).max();
    let line = |call: &Call| {
        let (at, took) = (measured_micros(call.started_us), measured_micros(call.duration_us));
        let outcome = match call.outcome {
            CallOutcome::Ok => "",
            CallOutcome::Failed => "  failed",
            CallOutcome::TimedOut => "  timed out by itself",
            CallOutcome::CutShort => "  cut short at the soft deadline",
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

/// What it asked of others, a line each.
pub(crate) fn requests(story: &Story) -> Vec<String> {
    let line = |one: &OutgoingRequest| {
        let what = format!("{} {}{}", one.method, one.host, one.path);
        let (at, took) = (measured_micros(one.started_us), measured_micros(one.duration_us));
        if one.outcome == RequestOutcome::Refused {
            return format!("{}  refused, never sent (at {at})", printable(&what));
        }
        let outcome = match (one.outcome, one.status) {
            (RequestOutcome::Answered, Some(status)) => format!("{status} after {took}"),
            (outcome, status) => {
                let head = status.map(|status| format!("answered {status}, body "));
                let outcome = outcome.as_str().replace('_', " ");
                format!("{}{outcome} after {took}", head.unwrap_or_default())
            }
        };
        format!("{}  sent at {at}, {outcome}", printable(&what))
    };
    let omitted = Some(story.requests_omitted).filter(|omitted| *omitted > 0);
    let omitted = omitted.map(|omitted| format!("({omitted} earlier ones)"));
    omitted.into_iter().chain(story.requests.iter().map(line)).collect()
}

/// What has a name, each of its lines behind it: the name stands before the first.
pub(crate) fn named(
    name: &'static str,
    lines: impl IntoIterator<Item = String>,
) -> impl Iterator<Item = (&'static str, String)> {
    let name_of = move |number| if number == 0 { name } else { "" };
    lines.into_iter().enumerate().map(move |(number, line)| (name_of(number), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_body_hung_is_told_with_the_status_that_came() {
        let request = |outcome, status| OutgoingRequest {
            method: "GET".to_owned(),
            host: "x".to_owned(),
            path: "/".to_owned(),
            started_us: 12,
            duration_us: 2_500_000,
            outcome,
            status,
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
    fn a_call_that_was_cut_stands_last_and_names_of_guests_drive_no_terminal() {
        let call = |name: &str, started_us, outcome| Call {
            name: name.to_owned().into(),
            started_us,
            duration_us: 2_500_000,
            outcome,
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
