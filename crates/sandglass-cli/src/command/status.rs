//! `sandglass status`: how sessions stand, by a journal or by a running daemon.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use sandglass_liveness::Fold;
use sandglass_liveness::session::{Status, StatusView, status};
use sandglass_model::{Clock as _, EntityRef, SystemClock};
use sandglass_source::printable;
use serde::Deserialize;

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::play::pause;
use crate::terminal::{Output, Tone, note};
use crate::{fetch, journal_file, threads};

/// How often the live view looks again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most pages of a daemon's sessions that are read: a terminal shows far fewer.
const PAGES_MAX: usize = 100;
/// What a terminal is told to begin again at its top, with nothing on it.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Shows how sessions stand
///
/// QUEUED nothing was asked of it yet, RUNNING, SILENT it was warned of, STUCK work in flight and no
/// sign of life for long, STOPPING, BLOCKED (why) until it is resumed, DONE. The mark STUCK stands
/// beside SILENT, too. A journal is read as it is, also where nobody writes it; of a daemon all
/// sessions are shown that are awake, or the one that is named.
///
/// Exit code: 0, 1 with --check where a session is SILENT or STUCK, or the one that is named is
/// none, 2 no readable journal or daemon, 3 some of the journal is damaged or missing, 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass status http://127.0.0.1:7341 --watch\n  \
    sandglass status runs.db --json | jq 'select(.status == \"BLOCKED\").session'\n  \
    sandglass status http://127.0.0.1:7341 Session/42 --line\n  \
    sandglass status runs.db --check || page-somebody")]
pub(crate) struct Arguments {
    /// The journal, which may be in use; or the daemon (http://HOST:PORT or
    /// https://HOST:PORT)
    #[arg(value_name = "JOURNAL|URL")]
    from: PathBuf,
    /// Only this session
    #[arg(value_name = "TYPE/ID")]
    session: Option<EntityRef>,
    #[command(flatten)]
    access: fetch::Access,
    /// Look again each second, until Ctrl-C
    #[arg(long, conflicts_with_all = ["json", "line", "check"])]
    watch: bool,
    /// Print one line: how many stand how, or how the one stands
    #[arg(long, conflicts_with = "json")]
    line: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Fail where a session is SILENT or STUCK
    #[arg(long)]
    check: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let source = Source::of(arguments)?;
    let threads = threads::start(Some(1))?;
    if !arguments.watch {
        let (found, exit) = threads.block_on(source.look())?;
        return shown(arguments, &found, exit);
    }
    threads.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        loop {
            let (found, _) = tokio::select! {
                found = source.look() => found?,
                _ = interrupts.next() => return Ok(Exit::Cancelled),
            };
            let mut output = Output::new();
            if io::stdout().is_terminal() {
                output.line(CLEAR)?;
            }
            table(&found, &mut output)?;
            tokio::select! {
                () = pause(LOOK_EVERY) => {}
                _ = interrupts.next() => return Ok(Exit::Cancelled),
            }
        }
    })
}

/// Prints what was found, and says how the command ends.
fn shown(arguments: &Arguments, found: &[StatusView], exit: Exit) -> anyhow::Result<Exit> {
    let mut output = Output::new();
    if arguments.json {
        found.iter().try_for_each(|view| output.json(view))?;
    } else if arguments.line {
        output.line(in_one_line(found, arguments.session.is_some()))?;
    } else {
        table(found, &mut output)?;
    }
    let is_missing = arguments.session.is_some() && found.is_empty();
    if is_missing {
        note("there is no such session; an entity is one where its spec has [limits]");
    }
    let is_alarming = found.iter().any(|view| view.stuck || view.status == Status::Silent);
    match exit {
        Exit::Ok if is_missing || (arguments.check && is_alarming) => Ok(Exit::Failed),
        exit => Ok(exit),
    }
}

/// Where sessions are looked for.
enum Source<'a> {
    Journal(&'a Path, Option<&'a EntityRef>),
    Daemon { base: String, client: fetch::Client, session: Option<&'a EntityRef> },
}

/// A page of a daemon's sessions.
#[derive(Deserialize)]
struct Page {
    sessions: Vec<StatusView>,
    next: Option<String>,
}

impl<'a> Source<'a> {
    fn of(arguments: &'a Arguments) -> anyhow::Result<Self> {
        let session = arguments.session.as_ref();
        let url = arguments.from.to_str().filter(|text| text.contains("://"));
        let Some(url) = url else { return Ok(Self::Journal(&arguments.from, session)) };
        let client = fetch::Client::new(&arguments.access, &fetch::address(url)?)?;
        Ok(Self::Daemon { base: url.trim_end_matches('/').to_owned(), client, session })
    }

    async fn look(&self) -> anyhow::Result<(Vec<StatusView>, Exit)> {
        match self {
            Self::Journal(path, session) => of_journal(path, *session),
            Self::Daemon { base, client, session } => {
                let found = of_daemon(base, client, *session).await?;
                Ok((found, Exit::Ok))
            }
        }
    }
}

fn of_journal(path: &Path, session: Option<&EntityRef>) -> anyhow::Result<(Vec<StatusView>, Exit)> {
    let mut fold = Fold::new();
    let exit = journal_file::read_folded(path, |record| fold.apply(record))?;
    let now = SystemClock::new().wall();
    let wanted = fold.entities().filter(|entity| session.is_none_or(|one| *one == entity.entity));
    Ok((wanted.filter_map(|entity| status(entity, now)).collect(), exit))
}

async fn of_daemon(
    base: &str,
    client: &fetch::Client,
    session: Option<&EntityRef>,
) -> anyhow::Result<Vec<StatusView>> {
    let read = async |path: String| {
        let address = fetch::address(&format!("{base}/v1/sessions{path}"))?;
        client.text(&address).await
    };
    if let Some(session) = session {
        let [entity_type, id] = [session.entity_type(), session.id()].map(fetch::path_segment);
        let text = read(format!("/{entity_type}/{id}")).await?;
        return Ok(vec![serde_json::from_str(&text).context("the answer is no status")?]);
    }
    let (mut all, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let from = after.map(|after: String| format!("&after={}", fetch::path_segment(&after)));
        let text = read(format!("?limit=1000{}", from.unwrap_or_default())).await?;
        let page: Page =
            serde_json::from_str(&text).context("the answer is no page of sessions")?;
        all.extend(page.sessions);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
    bail!("it has more sessions awake than can be shown; name one")
}

fn in_one_line(found: &[StatusView], is_one: bool) -> String {
    if let ([view], true) = (found, is_one) {
        let told = told(view);
        return printable(&format!("{} {}", view.session, told.join(" "))).into_owned();
    }
    let mut counts: BTreeMap<Status, usize> = BTreeMap::new();
    found.iter().for_each(|view| *counts.entry(view.status).or_default() += 1);
    let each: Vec<String> =
        counts.iter().map(|(status, many)| format!("{many} {status}")).collect();
    format!("{} sessions: {}", found.len(), each.join(", "))
}

fn table(found: &[StatusView], output: &mut Output) -> anyhow::Result<()> {
    if found.is_empty() {
        output.line("no sessions")?;
    }
    for view in found {
        let [status, rest @ ..] = &told(view)[..] else { continue };
        let status = format!("{status:<12}");
        let status = output.paint(tone(view), &status).into_owned();
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

/// How a session stands, in words; the status first.
fn told(view: &StatusView) -> Vec<String> {
    let status = match (&view.stop_reason_code, view.status) {
        (Some(code), Status::Blocked) => format!("BLOCKED({code})"),
        (_, status) => status.to_string(),
    };
    let mut told = vec![status];
    if view.stuck && view.status != Status::Stuck {
        told.push("STUCK".to_owned());
    }
    told.push(format!("run {} for {}", view.run_seq, format_millis(view.elapsed_ms)));
    if let Some(left) = view.budget_left_ms {
        told.push(format!("{} left", format_millis(left)));
    }
    if !view.in_flight.is_empty() {
        let mut doing = format!("in {}", view.in_flight.join(", "));
        if let Some(host_call) = &view.host_call {
            doing.push_str(&format!(" ({host_call})"));
        }
        told.push(doing);
    }
    if let (Some(last), Some(silent)) = (&view.last_signal, view.silent_ms) {
        told.push(format!("last {} {} ago", last.kind, format_millis(silent)));
    }
    told.extend(view.status_text.iter().map(|text| format!("\u{201c}{text}\u{201d}")));
    told
}
