//! Reports on a handler: lines for people, or one JSON object for scripts.

use sandglass_model::{Allocation, OutcomeKind, Rejection, RunReport, TelemetryDropped, TimeSplit};
use sandglass_source::printable;
use serde_json::json;

use super::arguments::Form;
use crate::duration::format_micros;
use crate::explain;
use crate::handler_text::{self, excerpt, labeled};
use crate::terminal::{Output, Tone};

pub(super) fn print(report: &RunReport, memory_bytes: u64, form: Form) -> anyhow::Result<()> {
    let output = Output::new();
    match form {
        Form::Json => output.json_pretty(report)?,
        Form::Text => {
            output.line(headline(report, &output))?;
            for (label, value) in details(report, memory_bytes) {
                output.line(output.detail(11, label, &value))?;
            }
        }
    }
    Ok(())
}

/// Reports a rejected handler, with the keys of other reports and empty values.
pub(super) fn print_rejection(rejection: &Rejection, form: Form) -> anyhow::Result<()> {
    let output = Output::new();
    match form {
        Form::Json => {
            let report = json!({
                "outcome": OutcomeKind::Rejected,
                "result": null,
                "error": { "kind": rejection.kind, "message": rejection.message },
                "deadline": { "budget_ms": 0, "elapsed_ms": 0, "overrun_us": 0, "owner": "handler" },
                "dying_span": null,
                "dying_call": null,
                "backtrace": [],
                "host_calls": { "count": 0, "by_function": [] },
                "overruns": [],
                "calls": [],
                "calls_omitted": 0,
                "requests": [],
                "requests_omitted": 0,
                "time_split_us": TimeSplit::default(),
                "wall_us": 0,
                "cpu_us": 0,
                "allocation": null,
                "memory": { "peak_bytes": 0, "host_peak_bytes": 0 },
                "telemetry_dropped": null,
                "trace_id": null,
                "dispatch_id": null,
            });
            output.json_pretty(&report)?;
        }
        Form::Text => {
            let kind = format!("rejected ({})", rejection.kind);
            let kind = output.paint(Tone::Bad, kind);
            output.line(format!("{kind}: {}", printable(&rejection.message)))?;
            let explain = explain::command(rejection.kind.as_str());
            output.line(output.detail(11, "explain", &explain))?;
        }
    }
    Ok(())
}

/// The telemetry of the guest that was dropped, if any.
pub(super) fn describe_dropped(report: &RunReport) -> Option<String> {
    let dropped = report.telemetry_dropped.filter(|dropped| !dropped.is_empty())?;
    let TelemetryDropped { spans, span_events, attributes, metrics, log_lines } = dropped;
    let counts = [
        (spans, "span", "spans"),
        (span_events, "event of a span", "events of spans"),
        (attributes, "attribute", "attributes"),
        (metrics, "observation of a metric", "observations of metrics"),
        (log_lines, "line of the log", "lines of the log"),
    ];
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    Some(format!("the guest exceeded the limits on telemetry; dropped: {}", counts.join(", ")))
}

fn headline(report: &RunReport, output: &Output) -> String {
    let kind = report.outcome.kind();
    let deadline = report.deadline;
    let (tone, text) = match kind {
        OutcomeKind::Completed => (Tone::Good, "completed"),
        OutcomeKind::Failed => (Tone::Doubtful, "failed"),
        OutcomeKind::TimedOut => (Tone::Bad, "timed out"),
        OutcomeKind::Trapped => (Tone::Bad, "trapped"),
        OutcomeKind::Limit => (Tone::Bad, "hit a limit"),
        OutcomeKind::Rejected | OutcomeKind::Interrupted => (Tone::Bad, "rejected"),
        OutcomeKind::Cancelled => (Tone::Doubtful, "cancelled"),
    };
    let times = report.started_at.map(|_| (deadline.elapsed_ms, deadline.budget_ms));
    let span = report.dying_span.as_ref();
    let span = span.map(|span| output.paint(Tone::Strong, printable(span)));
    handler_text::ending(&output.paint(tone, text), times, span.as_deref())
}

fn details(report: &RunReport, memory_bytes: u64) -> Vec<(&'static str, String)> {
    let mut details = Vec::new();
    if let Some((kind, message)) = report.outcome.error() {
        details.push(("error", format!("{kind}: {}", printable(&message))));
    }
    if report.outcome.kind() == OutcomeKind::TimedOut {
        details.push((
            "stopped",
            format!("{} after its deadline", format_micros(report.deadline.overrun_us)),
        ));
    }
    details.extend(last_wait(report).map(|line| ("waited", line)));
    if let Some(own) =
        handler_text::own_frame(&report.backtrace).filter(|_| has_ended_badly(report))
    {
        details.push(("where", own));
    }
    if let Some(result) = report.result() {
        details.push(("result", excerpt(result)));
    }
    details.extend(labeled("at", handler_text::frames(&report.backtrace)));
    details.extend(labeled("host calls", handler_text::calls_by_function(&report.host_calls)));
    if has_ended_badly(report) {
        details.extend(labeled("last calls", handler_text::last_calls(&report.story)));
    }
    details.extend(labeled("failed", handler_text::failed_calls(&report.story)));
    details.extend(labeled("limits", handler_text::overruns(&report.overruns)));
    details.extend(labeled("requests", handler_text::requests(&report.story)));
    details.push(("time", handler_text::time(&report.time_split_us)));
    if report.started_at.is_some() {
        let (cpu, wall) = (format_micros(report.cpu_us), format_micros(report.wall_us));
        details.push(("cpu", format!("{cpu} of {wall}")));
        let (peak, most) = (report.peak_memory_bytes.div_ceil(1024), memory_bytes / 1024);
        let by_host = match report.peak_host_memory_bytes.div_ceil(1024) {
            0 => String::new(),
            host => format!(", and {host} KiB of the host for it"),
        };
        details.push(("memory", format!("{peak} KiB at most, of {most} KiB{by_host}")));
    }
    if report.allocation == Some(Allocation::OnDemand) {
        let on_demand = "allocated on demand, which is slower: the module may be larger than a slot of the pool";
        details.push(("instance", on_demand.to_owned()));
    }
    details.push(("dispatch", report.dispatch_id.to_string()));
    details.push(("trace", report.trace.trace_id.to_string()));
    if let Some(hint) = handler_text::debug_info_hint(&report.backtrace) {
        details.push(("hint", hint.to_owned()));
    }
    details.extend(report.outcome.error().map(|(code, _)| ("explain", explain::command(&code))));
    details
}

/// Whether the host ended the handler, so that what led to it is of interest.
fn has_ended_badly(report: &RunReport) -> bool {
    let kind = report.outcome.kind();
    report.started_at.is_some() && kind != OutcomeKind::Completed && kind != OutcomeKind::Failed
}

/// What a stopped handler waited for.
fn last_wait(report: &RunReport) -> Option<String> {
    let is_stopped =
        matches!(report.outcome.kind(), OutcomeKind::TimedOut | OutcomeKind::Cancelled);
    let span = report.dying_span.as_deref().filter(|_| is_stopped)?;
    report.started_at.map(|_| handler_text::last_wait(&report.story, &report.deadline, span))
}
