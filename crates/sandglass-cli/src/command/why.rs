//! `sandglass why`: explains from a journal why a handler ended as it did.

use anyhow::bail;
use sandglass_insight::why::{
    Attempt, Before, Brief, Ending, Explanation, Host, Inquiry, Others, Taken, Unread, Which,
};
use sandglass_model::{
    Decision, DispatchId, Dispatched, Event, NO_ACTION, Outcome, OutcomeKind, Record, Retried,
};
use sandglass_source::printable;

use crate::duration::format_micros;
use crate::exit::Exit;
use crate::handler_text::{excerpt, labeled};
use crate::journal_place::Place;
use crate::narrate::one_colon;
use crate::terminal::{Output, Tone, note};
use crate::{explain, handler_text, journal_file};

/// Explains why a handler ended as it did, from its journal
///
/// Shows what was requested, where the time went, where the handler stopped, what was decided,
/// whether it happened before, and what to do next. Explains the last attempt of DISPATCH, or the
/// given one (DISPATCH#1). Without DISPATCH, explains the handler that ended last without
/// completing; if no process writes the journal, a handler without an end was lost with its host,
/// and counts as the last one. The journal may be in use. Host calls are listed one by one for
/// handlers that did not complete, and for one in a hundred of those that did.
///
/// Exit code: 0 explained, 1 there is no such dispatch, 2 the journal cannot be read, 3 parts of
/// the journal are damaged or missing (the explanation uses the rest).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass why runs.db\n  \
    sandglass why postgresql://sandglass@db.example/runs\n  \
    sandglass why runs.db 7a3a0f4be3ad4ab2b2d9a06b63e9e4d5\n  \
    sandglass why runs.db 7a3a0f4be3ad4ab2b2d9a06b63e9e4d5#1\n  \
    sandglass why runs.db --json | jq '{dying_span, calls, requests, next}'")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// The dispatch, and after `#` the attempt [default: its last attempt; without a dispatch, the
    /// handler that ended last without completing]
    #[arg(value_name = "DISPATCH[#ATTEMPT]", value_parser = which)]
    dispatch: Option<Which>,
    /// Print one JSON object: the keys of a report of `sandglass run`, and more from the journal
    #[arg(long)]
    json: bool,
}

fn which(text: &str) -> Result<Which, String> {
    let (dispatch, attempt) = match text.split_once('#') {
        Some((dispatch, attempt)) => (dispatch, Some(attempt)),
        None => (text, None),
    };
    let dispatch = dispatch.parse::<DispatchId>().map_err(|error| error.to_string())?;
    match attempt.map(str::parse) {
        None => Ok(Which::Dispatch(dispatch)),
        Some(Ok(0) | Err(_)) => Err("after `#`, write the number of an attempt, from 1".to_owned()),
        Some(Ok(attempt)) => Ok(Which::Attempt(dispatch, attempt)),
    }
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { journal, dispatch, json } = arguments;
    let host = match journal.has_writer() {
        Some(true) => Host::Alive,
        Some(false) => Host::Gone,
        None => Host::Unknown,
    };
    let which = dispatch.unwrap_or_default();
    let mut inquiry = Inquiry::about(which).host(host);
    let mut has_ended = false;
    let exit = journal_file::read(journal, |record| {
        has_ended |= record.is_some_and(|record| matches!(record.event, Event::Ended(_)));
        feed(&mut inquiry, record);
    })?;
    let Some(found) = inquiry.finish() else { return nothing_found(which, has_ended, exit) };
    let found = if found.has_more() { explain_fully(journal, host, found)? } else { found };
    let output = Output::new();
    if *json {
        output.json_pretty(&found)?;
    } else {
        print(&found, &output)?;
    }
    Ok(exit)
}

/// Reports that there is nothing to explain, after `exit` of reading the journal, in which a handler
/// `has_ended` or not.
fn nothing_found(which: Which, has_ended: bool, exit: Exit) -> anyhow::Result<Exit> {
    let named = match which {
        Which::Latest => None,
        Which::Dispatch(dispatch) => Some(format!("dispatch {dispatch}")),
        Which::Attempt(dispatch, attempt) => {
            Some(format!("attempt {attempt} of dispatch {dispatch}"))
        }
    };
    match (named, exit) {
        (Some(named), Exit::Ok) => {
            note(&format!("no record of the journal is about {named}"));
            return Ok(Exit::Failed);
        }
        (Some(named), _) => bail!("no readable record is about {named}"),
        (None, Exit::Ok) if !has_ended => note("no handler has ended yet"),
        (None, Exit::Ok) => {
            note("every handler that has ended has completed; name a dispatch to have it explained")
        }
        (None, _) => note("no readable record is about a handler that did not complete"),
    }
    Ok(exit)
}

/// Explains `found` again with what other records say about it, which a pass that finds the dispatch
/// at its end has not collected.
fn explain_fully(journal: &Place, host: Host, found: Explanation) -> anyhow::Result<Explanation> {
    let Dispatched { dispatch, attempt, .. } = found.dispatched;
    let mut inquiry = Inquiry::about(Which::Attempt(dispatch, attempt)).host(host);
    journal_file::read_silently(journal, |record| feed(&mut inquiry, record))?;
    // It may have been pruned meanwhile.
    Ok(inquiry.finish().unwrap_or(found))
}

/// Feeds a record, or a gap.
fn feed(inquiry: &mut Inquiry, record: Option<&Record>) {
    match record {
        Some(record) => inquiry.feed(record),
        None => inquiry.add_gap(),
    }
}

fn print(found: &Explanation, output: &Output) -> anyhow::Result<()> {
    let Explanation { entity, dispatched, ending, .. } = found;
    let attempt = match dispatched.attempt {
        0 | 1 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    let entity = output.paint(Tone::Strong, printable(&entity.to_string()));
    let of = format!("{} for {}", dispatched.integration, dispatched.action);
    output.line(format_args!("{entity}  {}{attempt}", printable(&of)))?;
    match ending {
        Some(ending) => output.line(headline(ending, output))?,
        None => output.line(output.paint(Tone::Doubtful, describe_missing_end(found)))?,
    }
    output.line("")?;
    for (label, value) in details(found) {
        output.line(output.detail(10, label, &value))?;
    }
    Ok(())
}

/// The headline of a handler without a record of its end.
fn describe_missing_end(found: &Explanation) -> &'static str {
    match &found.unread {
        Some(unread) if unread.has_ended() => ENDED_UNREAD,
        Some(_) => "may have ended: records after its dispatch can't be read",
        None => describe_unended(found.host),
    }
}

const ENDED_UNREAD: &str = "has ended; the record of its end can't be read";

const fn describe_unended(host: Host) -> &'static str {
    match host {
        Host::Alive => "has not ended: it is queued or running",
        Host::Gone => "was queued or running when the log ended, and was lost with its host",
        Host::Unknown => "was queued or running when the log ended",
    }
}

fn headline(ending: &Ending, output: &Output) -> String {
    let ended = &ending.ended;
    let tone = match ended.outcome.kind() {
        OutcomeKind::Completed => Tone::Good,
        OutcomeKind::Failed | OutcomeKind::Cancelled => Tone::Doubtful,
        _ => Tone::Bad,
    };
    let outcome = ended.outcome.kind().as_str().replace('_', " ");
    let are_times_known = ended.started_at.is_some() && !ending.is_time_unknown();
    let times = are_times_known.then_some((ended.deadline.elapsed_ms, ended.deadline.budget_ms));
    let span = ended.dying_span.as_ref();
    let span = span.map(|span| output.paint(Tone::Strong, printable(span)));
    handler_text::ending(&output.paint(tone, outcome), times, span.as_deref())
}

/// Labels and lines, in the order of a reader's questions.
fn details(found: &Explanation) -> Vec<(&'static str, String)> {
    let Explanation { dispatched_at, dispatched, ending, .. } = found;
    let mut details = Vec::new();
    let params = serde_json::to_string(&dispatched.params).unwrap_or_default();
    details.push((
        "requested",
        format!("{dispatched_at}, in {}, with {}", printable(&dispatched.state), excerpt(&params)),
    ));
    if let Some(asker) = dispatched.asker {
        let of = found.asker.as_ref().map(|asker| format!(" of {asker}")).unwrap_or_default();
        details.push(("", format!("by a handler{}, dispatch {asker}", printable(&of))));
    }
    if let Some(retried) = &dispatched.retried {
        details.push(("", retry_text(retried)));
    }
    match ending {
        Some(ending) => details.extend(execution_details(ending)),
        None if found.unread.is_some() => {
            details.extend(found.unread.as_ref().and_then(unread_details));
        }
        None if found.host != Host::Alive => {
            details.push(("log ends", found.log_ends_at.to_string()));
        }
        None => {}
    }
    details.extend(labeled("started", others(&found.started)));
    details.extend(ending.iter().flat_map(decision_details));
    details.extend(labeled("attempts", attempts(found)));
    details.extend(labeled("unended", others(&found.unended)));
    let next = found
        .advise()
        .into_iter()
        .enumerate()
        .map(|(index, advice)| format!("{}. {}", index + 1, printable(&advice.to_string())));
    details.extend(labeled("next", next));
    details.push(("dispatch", dispatched.dispatch.to_string()));
    details.push(("trace", dispatched.trace.trace_id.to_string()));
    let error = ending.as_ref().and_then(|ending| ending.ended.outcome.error());
    details.extend(error.map(|(code, _)| ("explain", explain::command(&code))));
    details
}

/// The transition that followed an unreadable end, with its params.
fn unread_details(unread: &Unread) -> Option<(&'static str, String)> {
    let Unread { transition, transition_at, params } = unread;
    let (taken, at) = (transition.as_ref()?, transition_at.as_ref()?);
    let params = serde_json::to_string(params).unwrap_or_default();
    let line = excerpt(&format!("takes {}, with {params}", transition_text(taken)));
    Some(("followed", format!("{at}, {line}")))
}

fn retry_text(Retried { by, reason, .. }: &Retried) -> String {
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    printable(&format!("retried for {by}{reason}")).into_owned()
}

/// One line for each attempt; empty if there is only one.
fn attempts(found: &Explanation) -> Vec<String> {
    if found.attempts.len() < 2 && found.attempts_omitted == 0 {
        return Vec::new();
    }
    let lines = found.attempts.iter().map(|one| {
        let again = one.retried.as_ref().map(|retried| format!("{}; ", retry_text(retried)));
        let this = if one.attempt == found.dispatched.attempt { " (this one)" } else { "" };
        let is_last = found.attempts.last().is_some_and(|last| last.attempt == one.attempt);
        let how = match one.outcome {
            None if is_last && one.transition.is_none() => last_without_end(found).to_owned(),
            _ => attempt_text(one),
        };
        format!("{}: {}{how}{this}", one.attempt, again.unwrap_or_default())
    });
    handler_text::earlier(found.attempts_omitted).into_iter().chain(lines).collect()
}

/// The state of the last attempt, which need not be the one that is explained.
fn last_without_end(found: &Explanation) -> &'static str {
    if found.ending.is_none() { describe_missing_end(found) } else { describe_unended(found.host) }
}

fn attempt_text(attempt: &Attempt) -> String {
    let Some(outcome) = attempt.outcome else {
        let followed = attempt
            .transition
            .as_ref()
            .map(|taken| format!(", and took {}", transition_text(taken)));
        return format!("{ENDED_UNREAD}{}", printable(&followed.unwrap_or_default()));
    };
    let outcome = outcome.as_str().replace('_', " ");
    let times = attempt.elapsed_ms.map(|elapsed| (elapsed, attempt.budget_ms));
    let span = attempt.dying_span.as_ref().map(|span| printable(span));
    let mut line = handler_text::ending(&outcome, times, span.as_deref());
    if let Some(decision) = &attempt.decision {
        line +=
            &format!("; {}", printable(&describe_decision(decision, attempt.transition.as_ref())));
    }
    line
}

/// One line for each of other handlers.
fn others(others: &Others) -> Vec<String> {
    let line = |one: &Brief| {
        let outcome = match one.outcome {
            Some(outcome) => format!(", {}", outcome.as_str().replace('_', " ")),
            None if one.may_have_ended => ", which may have ended".to_owned(),
            None => String::new(),
        };
        let span = one.outcome.and(one.dying_span.as_ref()).map(|span| format!(" in {span}"));
        let span = span.unwrap_or_default();
        let line = format!("{} for {}{outcome}{span}", one.entity, one.action);
        format!("{} ({})", printable(&line), one.dispatch)
    };
    let more = (others.omitted > 0).then(|| format!("and {} more", others.omitted));
    others.listed.iter().map(line).chain(more).collect()
}

/// What the handler did.
fn execution_details(ending: &Ending) -> Vec<(&'static str, String)> {
    let ended = &ending.ended;
    let mut details = Vec::new();
    if let Some((kind, message)) = ended.outcome.error() {
        // Some messages start with their kind.
        let has_kind = message.strip_prefix(&*kind).is_some_and(|rest| rest.starts_with(':'));
        let error = if has_kind { message } else { format!("{kind}: {message}") };
        details.push(("error", printable(&one_colon(&error)).into_owned()));
    }
    if let Outcome::Completed(completion) = &ended.outcome {
        details.push(("result", excerpt(&completion.result)));
    }
    let time = match ending.is_time_unknown() {
        true => "unknown: its host ended before it".to_owned(),
        false => handler_text::time(&ended.time_split_us),
    };
    details.push(("time", time));
    match &ended.account {
        Some(account) => {
            details.extend(labeled("calls", handler_text::calls(&account.story)));
            details.extend(labeled("requests", handler_text::requests(&account.story)));
        }
        None => {
            details.extend(labeled("calls", handler_text::calls_by_function(&ended.host_calls)))
        }
    }
    details.extend(labeled("limits", handler_text::overruns(&ended.overruns)));
    details.extend(labeled("at", handler_text::frames(ended.frames())));
    if matches!(ended.outcome, Outcome::TimedOut(_)) {
        let after = format_micros(ended.deadline.overrun_us);
        details.push(("stopped", format!("{after} after its deadline")));
    }
    if let Some(account) = &ended.account {
        let (cpu, wall) = (format_micros(account.cpu_us), format_micros(account.wall_us));
        let memory = account.peak_memory_bytes.div_ceil(1024);
        details.push(("used", format!("{cpu} of CPU in {wall}, {memory} KiB of memory")));
    }
    details
}

/// What was decided, and whether it happened before.
fn decision_details(ending: &Ending) -> Vec<(&'static str, String)> {
    let Ending { at, ended, taken, signature, before, .. } = ending;
    let mut details = Vec::new();
    let decided = describe_decision(&ended.decision, taken.as_ref());
    details.push(("decided", format!("{at}, {}", printable(&decided))));
    if let Some(signature) = signature {
        let of = printable(&signature.to_string()).into_owned();
        details.push(("before", format!("{} ({of})", occurrences(before))));
    }
    details
}

/// What follows from an end. Not escaped yet.
fn describe_decision(decision: &Decision, taken: Option<&Taken>) -> String {
    match (decision, taken) {
        (Decision::Take { .. }, Some(taken)) => format!("takes {}", transition_text(taken)),
        (Decision::Take { action }, None) => format!("takes {action}"),
        (Decision::Superseded { action }, _) if action == NO_ACTION => {
            "nothing: it names no action".to_owned()
        }
        (Decision::Superseded { action }, _) => {
            format!("nothing: its entity no longer takes {action}")
        }
        (Decision::Rerun, _) => "it is dispatched again".to_owned(),
        (Decision::Held, _) => "it is dispatched again when its session is resumed".to_owned(),
        (Decision::Dropped, _) => "nothing: its session is over".to_owned(),
    }
}

fn transition_text(Taken { action, from, to, position }: &Taken) -> String {
    format!("{action}: {from} -> {to} (record {position})")
}

fn occurrences(before: &Before) -> String {
    match (before.count, before.first_at, before.last_at) {
        (0, ..) => "never".to_owned(),
        (1, Some(first), _) => format!("once, {first}"),
        (count, Some(first), Some(last)) => format!("{count} times, from {first} to {last}"),
        (count, ..) => format!("{count} times"),
    }
}
