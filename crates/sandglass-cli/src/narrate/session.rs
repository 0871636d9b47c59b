//! Describes records of sessions in one line each.

use sandglass_model::{
    Event, Limit, LimitBreached, Meter, RunLimits, RunStopped, RunStopping, StopCause,
};

use crate::duration::format_millis;
use crate::terminal::Tone;

/// What a record is, its details, and its tone.
pub(super) fn describe(event: &Event) -> (String, String, Tone) {
    let (what, detail, tone) = match event {
        Event::RunStarted { run_seq, limits } => {
            ("run", format!("run {run_seq} starts{}", limits_text(limits)), Tone::Plain)
        }
        Event::SessionResumed { from_run_seq, run_seq, by, reason, to_cancel } => {
            let by = by.as_ref().map_or("by itself".to_owned(), |by| format!("by {by}"));
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            if *to_cancel {
                let detail = format!("run {run_seq} exists only to be cancelled {by}{why}");
                ("cancel", detail, Tone::Doubtful)
            } else {
                let detail = format!("{by} after run {from_run_seq}, as run {run_seq}{why}");
                ("resumed", detail, Tone::Good)
            }
        }
        Event::LimitBreached(breach) => {
            let tone = match breach.limit {
                // These end no handler.
                Limit::InactivityWarn | Limit::RepeatThreshold | Limit::HostCallTimeout => {
                    Tone::Doubtful
                }
                _ => Tone::Bad,
            };
            ("limit", breach_text(breach), tone)
        }
        Event::LimitCleared { limit, silent_ms, .. } => {
            let detail = format!("{limit} cleared after {}", format_millis(*silent_ms));
            ("limit", detail, Tone::Good)
        }
        Event::RunStopping(stopping) => ("stop", stopping_text(stopping), Tone::Bad),
        Event::RunStopped(stopped) => ("stop", stopped_text(stopped), Tone::Doubtful),
        other => (other.kind(), String::new(), Tone::Plain),
    };
    (what.to_owned(), detail, tone)
}

fn breach_text(breach: &LimitBreached) -> String {
    let amount = |value: u64| match breach.kind {
        Meter::Elapsed => format_millis(value),
        Meter::Count => value.to_string(),
    };
    let in_flight = breach.in_flight.as_ref().map(|handler| match &handler.host_call {
        Some(call) => format!(", {} in {call}", handler.handler),
        None => format!(", {} in flight", handler.handler),
    });
    let more = breach.times.saturating_sub(1);
    let more = if more > 0 { format!(", and {more} more times") } else { String::new() };
    let what = breach.signature.as_ref().map(|signature| format!(", {signature}"));
    let what = what.unwrap_or_default();
    format!(
        "{} of {} breached: {}{}{what}{more}",
        breach.limit,
        amount(breach.threshold),
        amount(breach.observed),
        in_flight.unwrap_or_default()
    )
}

fn stopping_text(stopping: &RunStopping) -> String {
    let grace = match stopping.grace_ms {
        0 => String::new(),
        grace => format!(", with a grace of {} for its handlers", format_millis(grace)),
    };
    format!(
        "run {} stops ({}{}); {}{grace}",
        stopping.run_seq,
        stopping.stop_reason_code,
        cause_text(&stopping.cause),
        stopping.directive.as_str()
    )
}

fn stopped_text(stopped: &RunStopped) -> String {
    let stop = format!(
        "run {} has stopped after {} ({})",
        stopped.run_seq,
        format_millis(stopped.elapsed_ms),
        stopped.stop_reason_code,
    );
    let directive = stopped.directive.map(|directive| directive.as_str().to_owned());
    let repeated = stopped.signature.as_ref();
    let repeated =
        repeated.map(|repeated| format!("{} times {}", repeated.count, repeated.signature));
    let parts: Vec<String> = [Some(stop), directive, repeated].into_iter().flatten().collect();
    parts.join("; ")
}

/// The limits of a run that are short enough for its line.
fn limits_text(limits: &RunLimits) -> String {
    let times = [
        (Limit::RunTimeout, limits.run_timeout_ms),
        (Limit::ExecutionTimeout, limits.execution_timeout_ms),
        (Limit::InactivityTimeout, limits.inactivity_timeout_ms),
        (Limit::ProgressTimeout, limits.progress_timeout_ms),
    ];
    let times = times.into_iter().filter_map(|(limit, millis)| Some((limit, millis?)));
    times.map(|(limit, millis)| format!(", {limit} {}", format_millis(millis))).collect()
}

fn cause_text(cause: &StopCause) -> String {
    match cause {
        StopCause::Operator { by, reason } if reason.is_empty() => format!(" by {by}"),
        StopCause::Operator { by, reason } => format!(" by {by}: {reason}"),
        StopCause::Parent { reason, .. } if !reason.is_empty() => format!(": {reason}"),
        _ => String::new(),
    }
}
