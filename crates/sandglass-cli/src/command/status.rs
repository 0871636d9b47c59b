//! `sandglass status`: shows the status of sessions, and of handlers without one, from a journal or a
//! running daemon.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::bail;
use sandglass_liveness::Fold;
use sandglass_liveness::session::{Status, StatusView, status};
use sandglass_model::{Clock as _, EntityRef, SystemClock};
use sandglass_source::printable;
use serde::Deserialize;

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::journal_place::{Place, is_url};
use crate::terminal::{Output, Tone, count, note};
use crate::wait::pause;
use crate::{fetch, journal_file, threads};

/// How often `--watch` refreshes.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Most pages of a daemon's sessions that are read: a terminal shows far fewer.
const PAGES_MAX: usize = 100;
/// Moves the cursor to the top of the terminal, and clears it.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Shows the status of sessions and of handlers in flight
///
/// QUEUED has no work yet; SILENT was warned about for its inactivity; STUCK has work in flight, but
/// shows no sign of life for long (STUCK can also follow SILENT); BLOCKED(reason) has to be resumed;
/// RUNNING, STOPPING and DONE are what they say. An entity whose spec has no limits is shown while it
/// has handlers in flight: RUNNING, STUCK after 5 minutes without a sign of life, SILENT after 10
/// minutes. A journal may be in use, but does not contain the last host calls. Of a daemon, shows
/// everything that is awake, or the given one.
///
/// Exit code: 0 shown, 1 the given session does not exist, or, with --check, one of those shown is
/// SILENT or STUCK or a host of the cluster does not respond, 2 the journal or the daemon cannot be
/// read, 3 parts of the journal are damaged or missing, 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass status http://127.0.0.1:7341 --watch\n  \
    sandglass status runs.db --json | jq 'select(.status == \"BLOCKED\").session'\n  \
    sandglass status http://127.0.0.1:7341 Session/42 --line\n  \
    sandglass status runs.db --check || send-alert")]
pub(crate) struct Arguments {
    /// The journal (a file, postgresql://USER@HOST/DATABASE or env:VAR), or the daemon
    /// (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "JOURNAL|URL")]
    from: OsString,
    /// Show only this session or entity
    #[arg(value_name = "TYPE/ID")]
    session: Option<EntityRef>,
    #[command(flatten)]
    access: fetch::Access,
    /// Refresh every second, until Ctrl-C
    #[arg(long, conflicts_with_all = ["json", "line", "check"])]
    watch: bool,
    /// Print one line: how many there are by status, or the status of the given one
    #[arg(long, conflicts_with = "json")]
    line: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a session or a handler is SILENT or STUCK, or a host of a cluster does not respond
    #[arg(long)]
    check: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let source = Source::of(arguments)?;
    let threads = threads::start(Some(1))?;
    if !arguments.watch {
        let (found, exit) = threads.block_on(source.read())?;
        return print(arguments, &found, exit);
    }
    threads.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        loop {
            let (found, _) = tokio::select! {
                found = source.read() => found?,
                _ = interrupts.next() => return Ok(Exit::Cancelled),
            };
            let output = Output::new();
            if io::stdout().is_terminal() {
                output.line(CLEAR)?;
            }
            table(&found.sessions, &output)?;
            note_missing(&found.missing);
            tokio::select! {
                () = pause(REFRESH_EVERY) => {}
                _ = interrupts.next() => return Ok(Exit::Cancelled),
            }
        }
    })
}

/// What was found.
struct Found {
    sessions: Vec<StatusView>,
    /// Hosts that did not respond, whose sessions are not among these.
    missing: Vec<Missing>,
}

/// Prints the sessions. Returns the exit code.
fn print(arguments: &Arguments, found: &Found, exit: Exit) -> anyhow::Result<Exit> {
    let Found { sessions: found, missing } = found;
    let output = Output::new();
    if arguments.json {
        found.iter().try_for_each(|view| output.json(view))?;
    } else if arguments.line {
        output.line(in_one_line(found, arguments.session.is_some()))?;
    } else {
        table(found, &output)?;
    }
    let is_missing = arguments.session.is_some() && found.is_empty();
    if is_missing {
        note(
            "there is no such session; an entity is a session if its spec has [limits], and is \
             otherwise shown while it has handlers in flight",
        );
    }
    note_missing(missing);
    let is_alarming =
        !missing.is_empty() || found.iter().any(|view| view.stuck || view.status == Status::Silent);
    match exit {
        Exit::Ok if is_missing || (arguments.check && is_alarming) => Ok(Exit::Failed),
        exit => Ok(exit),
    }
}

/// Where sessions are read from.
enum Source<'a> {
    Journal(Place, Option<&'a EntityRef>),
    Daemon(fetch::Client, Option<&'a EntityRef>),
}

/// A page of a daemon's sessions.
#[derive(Deserialize)]
struct Page {
    sessions: Vec<StatusView>,
    next: Option<String>,
    /// Hosts of a cluster that did not respond.
    #[serde(default)]
    missing: Vec<Missing>,
}

#[derive(Deserialize)]
struct Missing {
    host: String,
    name: String,
}

/// Warns that the sessions of some hosts are not shown.
fn note_missing(missing: &[Missing]) {
    if missing.is_empty() {
        return;
    }
    let names: Vec<&str> = missing.iter().map(|one| one.name.as_str()).collect();
    let names = names.join(", ");
    note(&format!(
        "these hosts do not respond, and their sessions are not shown: {}",
        printable(&names)
    ));
}

impl<'a> Source<'a> {
    fn of(arguments: &'a Arguments) -> anyhow::Result<Self> {
        let session = arguments.session.as_ref();
        let is_daemon = |text: &&str| text.contains("://") && !is_url(text);
        let Some(url) = arguments.from.to_str().filter(is_daemon) else {
            return Ok(Self::Journal(arguments.from.clone().into(), session));
        };
        let client = fetch::Client::new(&arguments.access, url)?;
        Ok(Self::Daemon(client, session))
    }

    async fn read(&self) -> anyhow::Result<(Found, Exit)> {
        match self {
            Self::Journal(place, session) => {
                let (sessions, exit) = read_journal(place, *session)?;
                Ok((Found { sessions, missing: Vec::new() }, exit))
            }
            Self::Daemon(client, session) => Ok((read_daemon(client, *session).await?, Exit::Ok)),
        }
    }
}

fn read_journal(
    place: &Place,
    session: Option<&EntityRef>,
) -> anyhow::Result<(Vec<StatusView>, Exit)> {
    let mut fold = Fold::new();
    let exit = journal_file::fold_records(place, |record| fold.apply(record))?;
    let now = SystemClock::new().wall();
    let wanted = fold.entities().filter(|entity| session.is_none_or(|one| *one == entity.entity));
    Ok((wanted.filter_map(|entity| status(entity, now)).collect(), exit))
}

async fn read_daemon(client: &fetch::Client, session: Option<&EntityRef>) -> anyhow::Result<Found> {
    if let Some(session) = session {
        let found = client.session(&fetch::session_path(session)).await?;
        return Ok(Found { sessions: found.into_iter().collect(), missing: Vec::new() });
    }
    let (mut all, mut after) = (Vec::new(), String::new());
    // By host, because each page may lack the same ones.
    let mut missing = BTreeMap::new();
    for _ in 0..PAGES_MAX {
        let path = format!("/v1/sessions?limit=1000{after}");
        let page: Page = client.json(&path, "a page of sessions").await?;
        all.extend(page.sessions);
        missing.extend(page.missing.into_iter().map(|one| (one.host.clone(), one)));
        let Some(next) = page.next else {
            return Ok(Found { sessions: all, missing: missing.into_values().collect() });
        };
        after = format!("&after={}", fetch::path_segment(&next));
    }
    bail!("too many sessions are awake to show them; name one")
}

fn in_one_line(found: &[StatusView], is_one: bool) -> String {
    if let ([view], true) = (found, is_one) {
        let fields = fields(view).join(" ");
        return printable(&format!("{} {fields}", view.session)).into_owned();
    }
    let mut counts: BTreeMap<Status, usize> = BTreeMap::new();
    found.iter().for_each(|view| *counts.entry(view.status).or_default() += 1);
    let each: Vec<String> =
        counts.iter().map(|(status, many)| format!("{many} {status}")).collect();
    let sessions = found.iter().filter(|view| view.run_seq.is_some()).count();
    let others = match found.len() - sessions {
        0 => String::new(),
        others => format!(" and {others} without [limits]"),
    };
    format!("{}{others}: {}", count(sessions, "session"), each.join(", "))
}

fn table(found: &[StatusView], output: &Output) -> anyhow::Result<()> {
    if found.is_empty() {
        output.line("no sessions")?;
    }
    for view in found {
        let [status, rest @ ..] = &fields(view)[..] else { continue };
        let status = output.paint(tone(view), format!("{status:<12}"));
        let name = printable(&view.session).into_owned();
        let rest = rest.join("  ");
        output.line(format_args!("{name:<28} {status} {}", printable(&rest)))?;
    }
    Ok(())
}

const fn tone(view: &StatusView) -> Tone {
    match view.status {
        Status::Queued | Status::Done => Tone::Quiet,
        Status::Running => Tone::Good,
        Status::Silent | Status::Stopping => Tone::Doubtful,
        Status::Stuck | Status::Blocked => Tone::Bad,
    }
}

/// A status in words, starting with the status itself.
fn fields(view: &StatusView) -> Vec<String> {
    let status = match (&view.stop_reason_code, view.status) {
        (Some(code), Status::Blocked) => format!("BLOCKED({code})"),
        (_, status) => status.to_string(),
    };
    let mut fields = vec![status];
    if view.stuck && view.status != Status::Stuck {
        fields.push("STUCK".to_owned());
    }
    let elapsed = format_millis(view.elapsed_ms);
    fields.push(match view.run_seq {
        Some(run_seq) => format!("run {run_seq} for {elapsed}"),
        None => format!("no session, busy for {elapsed}"),
    });
    if let Some(left) = view.budget_left_ms {
        fields.push(format!("{} left", format_millis(left)));
    }
    if !view.in_flight.is_empty() {
        let mut handlers = format!("in {}", view.in_flight.join(", "));
        if let Some(host_call) = &view.host_call {
            handlers.push_str(&format!(" ({host_call})"));
        }
        fields.push(handlers);
    }
    if let (Some(last), Some(silent)) = (&view.last_signal, view.silent_ms) {
        fields.push(format!("last {} {} ago", last.kind, format_millis(silent)));
    }
    fields.extend(view.status_text.iter().map(|text| format!("\u{201c}{text}\u{201d}")));
    fields
}
