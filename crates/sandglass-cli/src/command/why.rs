//! `sandglass why`: why a handler ended as it did, by a journal alone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::bail;
use sandglass_insight::why::{
    Attempt, Before, Brief, Ending, Explanation, Host, Inquiry, Others, Taken, Unread, Which,
};
use sandglass_journal::SqliteJournal;
use sandglass_model::{Decision, DispatchId, Dispatched, Outcome, OutcomeKind, Record, Retried};
use sandglass_source::{printable, shortened};

use crate::duration::{format_micros, format_millis_exactly};
use crate::exit::Exit;
use crate::terminal::{Output, Tone, note};
use crate::{explain, handler_text, journal_file};

/// Most characters that a line shows of what a handler was given or answered; `--json` has
/// all of it.
const VALUE_MAX_CHARS: usize = 400;

/// Tells why a handler ended as it did, by its journal alone
///
/// What was asked, where the time went, where it stopped, what was decided, whether it
/// happened before, and what to do next: of the dispatch that is named, in its last
/// attempt or the one that is named (DISPATCH#1), or else of the one that ended last
/// without completing. Where nobody writes the journal any more, a handler that had not
/// ended by then was lost with its host, and counts as the last. The journal may be in use.
/// Its host calls are known one by one where it didn't complete, and of one in a hundred
/// that did.
///
/// Exit code: 0, 1 there is no such dispatch, 2 no readable journal, 3 some of the journal
/// is damaged or missing (what is told is by the rest).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass why runs.db\n  \
    sandglass why runs.db 7a3a0f4be3ad4ab2b2d9a06b63e9e4d5\n  \
    sandglass why runs.db 7a3a0f4be3ad4ab2b2d9a06b63e9e4d5#1\n  \
    sandglass why runs.db --json | jq '{dying_span, calls, requests, next}'")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// The dispatch, with `#` and an attempt for another than its last; the last that didn't
    /// complete, where none is named
    #[arg(value_name = "DISPATCH[#ATTEMPT]")]
    dispatch: Option<Named>,
    /// Print one JSON object: the keys of a run's report, and what the journal knows beside
    #[arg(long)]
    json: bool,
}

/// A dispatch, and one of its attempts, as somebody names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    dispatch: DispatchId,
    attempt: Option<u32>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dispatch, attempt) = match text.split_once('#') {
            Some((dispatch, attempt)) => (dispatch, Some(attempt)),
            None => (text, None),
        };
        let attempt = attempt.map(|attempt| match attempt.parse() {
            Ok(0) | Err(_) => Err("behind `#` stands the number of an attempt, from 1".to_owned()),
            Ok(attempt) => Ok(attempt),
        });
        let dispatch = dispatch.parse::<DispatchId>().map_err(|error| error.to_string())?;
        Ok(Self { dispatch, attempt: attempt.transpose()? })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempt {
            Some(attempt) => write!(f, "attempt {attempt} of dispatch {}", self.dispatch),
            None => write!(f, "dispatch {}", self.dispatch),
        }
    }
}

impl From<Named> for Which {
    fn from(named: Named) -> Self {
        match named.attempt {
            Some(attempt) => Self::Attempt(named.dispatch, attempt),
            None => Self::Dispatch(named.dispatch),
        }
    }
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { journal, dispatch, json } = arguments;
    let host = match SqliteJournal::has_writer(journal) {
        Some(true) => Host::Alive,
        Some(false) => Host::Gone,
        None => Host::Unknown,
    };
    let which = dispatch.map_or(Which::Latest, Which::from);
    let mut inquiry = Inquiry::about(which).host(host);
    let exit = journal_file::read(journal, |record| take_in(&mut inquiry, record))?;
    let is_whole = exit == Exit::Ok;
    let Some(found) = inquiry.finish() else {
        return match dispatch {
            Some(dispatch) => {
                if is_whole {
                    note(&format!("no record of the journal is about {dispatch}"));
                    return Ok(Exit::Failed);
                }
                bail!("no record that can be read is about {dispatch}")
            }
            None if !is_whole => {
                note("no record that can be read tells of a handler that didn't complete");
                Ok(exit)
            }
            None => {
                note("every handler that has ended has completed; name a dispatch to see one");
                Ok(exit)
            }
        };
    };
    let found = if found.has_more() { whole(journal, host, found)? } else { found };
    let mut output = Output::new();
    if *json {
        output.json_pretty(&found)?;
    } else {
        print(&found, &mut output)?;
    }
    Ok(exit)
}

/// The same explanation with all that other records tell of it, which a reading that finds
/// it last can't know.
fn whole(journal: &Path, host: Host, found: Explanation) -> anyhow::Result<Explanation> {
    let Dispatched { dispatch, attempt, .. } = found.dispatched;
    let mut inquiry = Inquiry::about(Which::Attempt(dispatch, attempt)).host(host);
    journal_file::read_again(journal, |record| take_in(&mut inquiry, record))?;
    // Somebody may have pruned it meanwhile.
    Ok(inquiry.finish().unwrap_or(found))
}

/// A record, or that there are some that can't be read.
fn take_in(inquiry: &mut Inquiry, record: Option<&Record>) {
    match record {
        Some(record) => inquiry.feed(record),
        None => inquiry.gap(),
    }
}

fn print(found: &Explanation, output: &mut Output) -> anyhow::Result<()> {
    let Explanation { entity, dispatched, ending, .. } = found;
    let attempt = match dispatched.attempt {
        0 | 1 => String::new(),
        again => format!(", attempt {again}"),
    };
    let entity = output.paint(Tone::Strong, &printable(&entity.to_string())).into_owned();
    let of = format!("{} for {}", dispatched.integration, dispatched.action);
    output.line(format_args!("{entity}  {}{attempt}", printable(&of)))?;
    match ending {
        Some(ending) => output.line(headline(ending, output))?,
        None => output.line(output.paint(Tone::Doubtful, no_end(found)).into_owned())?,
    }
    output.line("")?;
    for (name, value) in details(found) {
        let name = format!("{name:<10}");
        output.line(format_args!("  {}{value}", output.paint(Tone::Quiet, &name)))?;
    }
    Ok(())
}

/// Of one without a record of its end.
fn no_end(found: &Explanation) -> &'static str {
    match &found.unread {
        Some(unread) if unread.has_ended() => ENDED_UNREAD,
        Some(_) => "may have ended: records behind its dispatch can't be read",
        None => unended(found.host),
    }
}

const ENDED_UNREAD: &str = "has ended; the record of its end can't be read";

const fn unended(host: Host) -> &'static str {
    match host {
        Host::Alive => "has not ended: it is queued or runs",
        Host::Gone => "was queued or running when the log ends, and was lost with its host",
        Host::Unknown => "was queued or running when the log ends",
    }
}

fn headline(ending: &Ending, output: &Output) -> String {
    let ended = &ending.ended;
    let tone = match ended.outcome.kind() {
        OutcomeKind::Completed => Tone::Good,
        OutcomeKind::Failed | OutcomeKind::Cancelled => Tone::Doubtful,
        _ => Tone::Bad,
    };
    let how = ended.outcome.kind().as_str().replace('_', " ");
    let mut line = output.paint(tone, &how).into_owned();
    if ended.started_at.is_some() && !ending.is_time_unknown() {
        let (elapsed, budget) = (ended.deadline.elapsed_ms, ended.deadline.budget_ms);
        line += &format!(
            " after {} of {}",
            format_millis_exactly(elapsed),
            format_millis_exactly(budget)
        );
    }
    if let Some(span) = &ended.dying_span {
        line += &format!(", in {}", output.paint(Tone::Strong, &printable(span)));
    }
    line
}

/// Names and lines, in the order in which somebody asks.
fn details(found: &Explanation) -> Vec<(&'static str, String)> {
    let Explanation { dispatched_at, dispatched, ending, .. } = found;
    let mut details = Vec::new();
    let params = serde_json::to_string(&dispatched.params).unwrap_or_default();
    details.push((
        "asked",
        format!(
            "{dispatched_at}, in {}, with {}",
            printable(&dispatched.state),
            shortened(&printable(&params), VALUE_MAX_CHARS)
        ),
    ));
    if let Some(asker) = dispatched.asker {
        let of = found.asker.as_ref().map(|asker| format!(" of {asker}")).unwrap_or_default();
        details.push(("", format!("by a handler{}, dispatch {asker}", printable(&of))));
    }
    if let Some(retried) = &dispatched.retried {
        details.push(("", again_for(retried)));
    }
    match ending {
        Some(ending) => {
            details.extend(run(ending));
            details.extend(handler_text::named("started", others(&found.started)));
            details.extend(decided(ending));
        }
        None if found.unread.is_some() => {
            details.extend(found.unread.as_ref().and_then(followed_unread));
            details.extend(handler_text::named("started", others(&found.started)));
        }
        None if found.host != Host::Alive => {
            details.push(("log ends", found.log_ends_at.to_string()));
            details.extend(handler_text::named("started", others(&found.started)));
        }
        None => details.extend(handler_text::named("started", others(&found.started))),
    }
    details.extend(handler_text::named("attempts", attempts(found)));
    details.extend(handler_text::named("unended", others(&found.unended)));
    let next = found.next();
    let next = next.iter().enumerate();
    let next = next.map(|(number, line)| format!("{}. {}", number + 1, printable(line)));
    details.extend(handler_text::named("next", next));
    details.push(("dispatch", dispatched.dispatch.to_string()));
    details.push(("trace", dispatched.trace.trace_id.to_string()));
    let error = ending.as_ref().and_then(|ending| ending.ended.outcome.error());
    details.extend(error.map(|(code, _)| ("explain", explain::command(&code))));
    details
}

/// The transition that followed an end that can't be read, and what it tells of that.
fn followed_unread(unread: &Unread) -> Option<(&'static str, String)> {
    let Unread { transition, transition_at, params } = unread;
    let (taken, at) = (transition.as_ref()?, transition_at.as_ref()?);
    let Taken { action, from, to, position } = taken;
    let params = serde_json::to_string(params).unwrap_or_default();
    let line = format!("takes {action}: {from} -> {to} (record {position}), with {params}");
    let line = shortened(&printable(&line), VALUE_MAX_CHARS).into_owned();
    Some(("followed", format!("{at}, {line}")))
}

fn again_for(Retried { by, reason, .. }: &Retried) -> String {
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    printable(&format!("again for {by}{reason}")).into_owned()
}

/// The attempts, a line each; nothing where there is only this one.
fn attempts(found: &Explanation) -> Vec<String> {
    if found.attempts.len() < 2 && found.attempts_omitted == 0 {
        return Vec::new();
    }
    let omitted = Some(found.attempts_omitted).filter(|omitted| *omitted > 0);
    let omitted = omitted.map(|omitted| format!("({omitted} earlier ones)"));
    let told = found.attempts.iter().map(|one| {
        let again = one.retried.as_ref().map(|retried| format!("{}; ", again_for(retried)));
        let this = if one.attempt == found.dispatched.attempt { " (this one)" } else { "" };
        let is_last = found.attempts.last().is_some_and(|last| last.attempt == one.attempt);
        let how = match one.outcome {
            None if is_last && one.transition.is_none() => no_end_of_last(found).to_owned(),
            _ => how_it_went(one),
        };
        format!("{}: {}{how}{this}", one.attempt, again.unwrap_or_default())
    });
    omitted.into_iter().chain(told).collect()
}

/// Of the last attempt, which need not be the one that is explained.
fn no_end_of_last(found: &Explanation) -> &'static str {
    if found.ending.is_none() { no_end(found) } else { unended(found.host) }
}

fn how_it_went(attempt: &Attempt) -> String {
    let Some(outcome) = attempt.outcome else {
        let followed = attempt.transition.as_ref().map(|taken| {
            let Taken { action, from, to, position } = taken;
            format!(", and took {action}: {from} -> {to} (record {position})")
        });
        return format!("{ENDED_UNREAD}{}", printable(&followed.unwrap_or_default()));
    };
    let mut line = outcome.as_str().replace('_', " ");
    if let Some(elapsed) = attempt.elapsed_ms {
        line += &format!(
            " after {} of {}",
            format_millis_exactly(elapsed),
            format_millis_exactly(attempt.budget_ms)
        );
    }
    if let Some(span) = &attempt.dying_span {
        line += &format!(", in {}", printable(span));
    }
    if let Some(decision) = &attempt.decision {
        line += &format!("; {}", printable(&followed(decision, attempt.transition.as_ref())));
    }
    line
}

/// Other handlers, a line each.
fn others(others: &Others) -> Vec<String> {
    let line = |one: &Brief| {
        let how = match (&one.outcome, &one.dying_span) {
            (None, _) if one.may_have_ended => ", which may have ended".to_owned(),
            (None, _) => String::new(),
            (Some(outcome), None) => format!(", {}", outcome.as_str().replace('_', " ")),
            (Some(outcome), Some(span)) => {
                format!(", {} in {}", outcome.as_str().replace('_', " "), printable(span))
            }
        };
        let of = format!("{} for {}", one.entity, one.action);
        format!("{}{how} ({})", printable(&of), one.dispatch)
    };
    let more = Some(others.omitted).filter(|more| *more > 0);
    let more = more.map(|more| format!("and {more} more"));
    others.told.iter().map(line).chain(more).collect()
}

/// What the run did.
fn run(ending: &Ending) -> Vec<(&'static str, String)> {
    let ended = &ending.ended;
    let mut details = Vec::new();
    if let Some((kind, message)) = ended.outcome.error() {
        // Some say their kind themselves.
        let says_it = message.strip_prefix(&*kind).is_some_and(|rest| rest.starts_with(':'));
        let error = if says_it { message } else { format!("{kind}: {message}") };
        details.push(("error", printable(&error).into_owned()));
    }
    if let Outcome::Completed(completion) = &ended.outcome {
        let result = completion.result.to_string();
        let result = shortened(&printable(&result), VALUE_MAX_CHARS).into_owned();
        details.push(("result", result));
    }
    let time = match ending.is_time_unknown() {
        true => "unknown: its host ended in the middle of it".to_owned(),
        false => handler_text::time(&ended.time_split_us),
    };
    details.push(("time", time));
    match &ended.account {
        Some(account) => {
            details.extend(handler_text::named("calls", handler_text::calls(&account.story)));
            details.extend(handler_text::named("requests", handler_text::requests(&account.story)));
        }
        None => details.extend(handler_text::named("calls", handler_text::sums(&ended.host_calls))),
    }
    details.extend(handler_text::named("limits", handler_text::overruns(&ended.overruns)));
    details.extend(handler_text::named("at", handler_text::frames(ended.frames())));
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
fn decided(ending: &Ending) -> Vec<(&'static str, String)> {
    let Ending { at, ended, taken, signature, before, .. } = ending;
    let mut details = Vec::new();
    let decided = followed(&ended.decision, taken.as_ref());
    details.push(("decided", format!("{at}, {}", printable(&decided))));
    if let Some(signature) = signature {
        let of = printable(&signature.to_string()).into_owned();
        details.push(("before", format!("{} ({of})", seen(before))));
    }
    details
}

/// What follows from an end, not printable yet.
fn followed(decision: &Decision, taken: Option<&Taken>) -> String {
    match (decision, taken) {
        (Decision::Take { .. }, Some(Taken { action, from, to, position })) => {
            format!("takes {action}: {from} -> {to} (record {position})")
        }
        (Decision::Take { action }, None) => format!("takes {action}"),
        (Decision::Superseded { action }, _) => {
            format!("nothing: its entity no longer takes {action}")
        }
        (Decision::Rerun, _) => "it is run again".to_owned(),
        (Decision::Held, _) => "it is dispatched anew when its session is resumed".to_owned(),
        (Decision::Dropped, _) => "nothing: its session is over".to_owned(),
    }
}

fn seen(before: &Before) -> String {
    match (before.count, before.first_at, before.last_at) {
        (0, ..) => "never".to_owned(),
        (1, Some(first), _) => format!("once, {first}"),
        (count, Some(first), Some(last)) => format!("{count} times, from {first} to {last}"),
        (count, ..) => format!("{count} times"),
    }
}
