//! What records say of sessions, in a line.

use sandglass_model::{Event, Limit, Meter, RunLimits, StopCause};

use crate::duration::format_millis;
use crate::terminal::Tone;

/// A record of a session: what it is, what it says, and how it is to look.
pub(super) fn told(event: &Event) -> (String, String, Tone) {
    match event {
        Event::RunStarted { run_seq, limits } => {
            ("run".into(), format!("run {run_seq} starts{}", holds(limits)), Tone::Plain)
        }
        Event::SessionResumed { from_run_seq, run_seq, by, reason, to_cancel } => {
            let by = by.as_ref().map_or("by itself".to_owned(), |by| format!("by {by}"));
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            if *to_cancel {
                let detail = format!("run {run_seq} is there to be cancelled {by}{why}");
                return ("cancel".into(), detail, Tone::Doubtful);
            }
            let detail = format!("goes on {by} after run {from_run_seq}, as run {run_seq}{why}");
            ("resumed".into(), detail, Tone::Good)
        }
        Event::LimitBreached(breach) => {
            let amount = |value: u64| match breach.kind {
                Meter::Elapsed => format_millis(value),
                Meter::Count => value.to_string(),
            };
            let doing = breach.in_flight.as_ref().map(|doing| match &doing.host_call {
                Some(call) => format!(", {} in {call}", doing.handler),
                None => format!(", {} in flight", doing.handler),
            });
            let more = breach.times.saturating_sub(1);
            let more = if more > 0 { format!(", and {more} times more") } else { String::new() };
            let detail = format!(
                "{} of {} breached: {}{}{more}",
                breach.limit,
                amount(breach.threshold),
                amount(breach.observed),
                doing.unwrap_or_default()
            );
            let tone = match breach.limit {
                // None of them ends the run of a handler.
                Limit::InactivityWarn | Limit::RepeatThreshold | Limit::HostCallTimeout => {
                    Tone::Doubtful
                }
                _ => Tone::Bad,
            };
            ("limit".into(), detail, tone)
        }
        Event::LimitCleared { limit, silent_ms, .. } => {
            let detail = format!("{limit} cleared after {}", format_millis(*silent_ms));
            ("limit".into(), detail, Tone::Good)
        }
        Event::RunStopping(stopping) => {
            let grace = match stopping.grace_ms {
                0 => String::new(),
                grace => format!(", its handlers have {}", format_millis(grace)),
            };
            let detail = format!(
                "run {} is to stop ({}{}); {}{grace}",
                stopping.run_seq,
                stopping.stop_reason_code,
                who(&stopping.cause),
                stopping.directive.as_str()
            );
            ("stop".into(), detail, Tone::Bad)
        }
        Event::RunStopped(stopped) => {
            let directive = stopped.directive.map_or("", |directive| directive.as_str());
            let after = format_millis(stopped.elapsed_ms);
            let most = stopped
                .signature
                .as_ref()
                .map(|most| format!("; {} times {}", most.count, most.signature));
            let detail = format!(
                "run {} has stopped after {after} ({}) {directive}{}",
                stopped.run_seq,
                stopped.stop_reason_code,
                most.unwrap_or_default()
            );
            ("stop".into(), detail, Tone::Doubtful)
        }
        other => (other.kind().to_owned(), String::new(), Tone::Plain),
    }
}

/// What holds a run, as far as that is short to say.
fn holds(limits: &RunLimits) -> String {
    let times = [
        (Limit::RunTimeout, limits.run_timeout_ms),
        (Limit::ExecutionTimeout, limits.execution_timeout_ms),
        (Limit::InactivityTimeout, limits.inactivity_timeout_ms),
        (Limit::ProgressTimeout, limits.progress_timeout_ms),
    ];
    let times = times.into_iter().filter_map(|(limit, millis)| Some((limit, millis?)));
    times.map(|(limit, millis)| format!(", {limit} {}", format_millis(millis))).collect()
}

fn who(cause: &StopCause) -> String {
    match cause {
        StopCause::Operator { by, reason } if reason.is_empty() => format!(" by {by}"),
        StopCause::Operator { by, reason } => format!(" by {by}: {reason}"),
        StopCause::Parent { reason, .. } if !reason.is_empty() => format!(": {reason}"),
        _ => String::new(),
    }
}
