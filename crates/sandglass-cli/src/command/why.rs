//! `sandglass why`: why a handler ended as it did, by a journal alone.

use std::path::PathBuf;

use anyhow::bail;
use sandglass_liveness::why::{Before, Ending, Explanation, Inquiry, Taken, Which};
use sandglass_model::{Decision, DispatchId, Outcome, OutcomeKind};
use sandglass_source::{printable, shortened};

use crate::duration::{exact_millis, measured_micros};
use crate::exit::Exit;
use crate::terminal::{Output, Tone, note};
use crate::{anatomy, journal_file};

/// Most characters that a line shows of what a handler was given or answered; `--json` has
/// all of it.
const VALUE_MAX_CHARS: usize = 400;

/// Tells why a handler ended as it did, by its journal alone
///
/// What was asked, where the time went, where it stopped, what was decided, whether it
/// happened before, and what to do next: of the dispatch that is named, in its last
/// attempt, or else of the one that ended last without completing. The journal may be in
/// use. Its host calls are known one by one where it didn't complete, and of one in a
/// hundred that did.
///
/// Exit code: 0, 1 there is no such dispatch, 2 no readable journal, 3 some of the journal
/// is damaged or missing (what is told is by the rest).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass why runs.db\n  \
    sandglass why runs.db 7a3a0f4be3ad4ab2b2d9a06b63e9e4d5\n  \
    sandglass why runs.db --json | jq '{dying_span, calls, requests, next}'")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// The dispatch; the last that didn't complete, where none is named
    dispatch: Option<DispatchId>,
    /// Print one JSON object: the keys of a run's report, and what the journal knows beside
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { journal, dispatch, json } = arguments;
    let mut inquiry = Inquiry::about(dispatch.map_or(Which::Latest, Which::Dispatch));
    let exit = journal_file::read(journal, |record| inquiry.feed(record))?;
    let is_whole = exit == Exit::Ok;
    let Some(found) = inquiry.finish() else {
        return match dispatch {
            Some(dispatch) => {
                if is_whole {
                    note(&format!("no record of the journal is about dispatch {dispatch}"));
                    return Ok(Exit::Failed);
                }
                bail!("no record that can be read is about dispatch {dispatch}")
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
    let mut output = Output::new();
    if *json {
        output.line(serde_json::to_string_pretty(&found)?)?;
    } else {
        print(&found, &mut output)?;
    }
    Ok(exit)
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
        None => output.line(output.paint(Tone::Doubtful, "has not ended").into_owned())?,
    }
    output.line("")?;
    for (name, value) in details(found) {
        let name = format!("{name:<10}");
        output.line(format_args!("  {}{value}", output.paint(Tone::Quiet, &name)))?;
    }
    Ok(())
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
    if ended.started_at.is_some() {
        let (elapsed, budget) = (ended.deadline.elapsed_ms, ended.deadline.budget_ms);
        line += &format!(" after {} of {}", exact_millis(elapsed), exact_millis(budget));
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
        details.push(("", format!("by a handler, dispatch {asker}")));
    }
    if let Some(retried) = &dispatched.retried {
        let retried = format!("again for {}: {}", retried.by, retried.reason);
        details.push(("", printable(&retried).into_owned()));
    }
    if let Some(ending) = ending {
        details.extend(run(ending));
        details.extend(decided(ending));
    }
    let next = found.next();
    let next = next.iter().enumerate();
    let next = next.map(|(number, line)| format!("{}. {}", number + 1, printable(line)));
    details.extend(anatomy::named("next", next));
    details.push(("dispatch", dispatched.dispatch.to_string()));
    details.push(("trace", dispatched.trace.trace_id.to_string()));
    details
}

/// What the run did.
fn run(ending: &Ending) -> Vec<(&'static str, String)> {
    let ended = &ending.ended;
    let mut details = Vec::new();
    if let Some((kind, message)) = ended.outcome.error() {
        details.push(("error", format!("{kind}: {}", printable(&message))));
    }
    if let Outcome::Completed(completion) = &ended.outcome {
        let result = completion.result.to_string();
        let result = shortened(&printable(&result), VALUE_MAX_CHARS).into_owned();
        details.push(("result", result));
    }
    details.push(("time", anatomy::time(&ended.time_split_us)));
    match &ended.account {
        Some(account) => {
            details.extend(anatomy::named("calls", anatomy::calls(&account.story)));
            details.extend(anatomy::named("requests", anatomy::requests(&account.story)));
        }
        None => details.extend(anatomy::named("calls", anatomy::sums(&ended.host_calls))),
    }
    details.extend(anatomy::named("at", anatomy::frames(ended.frames())));
    if matches!(ended.outcome, Outcome::TimedOut(_)) {
        let after = measured_micros(ended.deadline.overrun_us);
        details.push(("stopped", format!("{after} after its deadline")));
    }
    if let Some(account) = &ended.account {
        let (cpu, wall) = (measured_micros(account.cpu_us), measured_micros(account.wall_us));
        let memory = account.peak_memory_bytes.div_ceil(1024);
        details.push(("used", format!("{cpu} of CPU in {wall}, {memory} KiB of memory")));
    }
    details
}

/// What was decided, and whether it happened before.
fn decided(ending: &Ending) -> Vec<(&'static str, String)> {
    let Ending { at, ended, taken, signature, before, .. } = ending;
    let mut details = Vec::new();
    let decided = match (&ended.decision, taken) {
        (Decision::Take { .. }, Some(Taken { action, from, to, position })) => {
            format!("takes {action}: {from} -> {to} (record {position})")
        }
        (Decision::Take { action }, None) => format!("takes {action}"),
        (Decision::Superseded { action }, _) => {
            format!("nothing: its entity no longer takes {action}")
        }
        (Decision::Rerun, _) => "it is run again".to_owned(),
    };
    details.push(("decided", format!("{at}, {}", printable(&decided))));
    if let Some(signature) = signature {
        let of = printable(&signature.to_string()).into_owned();
        details.push(("before", format!("{} ({of})", seen(before))));
    }
    details
}

fn seen(before: &Before) -> String {
    match (before.count, before.first_at, before.last_at) {
        (0, ..) => "never".to_owned(),
        (1, Some(first), _) => format!("once, {first}"),
        (count, Some(first), Some(last)) => format!("{count} times, from {first} to {last}"),
        (count, ..) => format!("{count} times"),
    }
}
