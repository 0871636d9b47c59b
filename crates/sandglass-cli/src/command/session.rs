//! `sandglass cancel` and `sandglass resume`: what operators do about sessions of a daemon.

use sandglass_model::EntityRef;
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::fetch::{self, Posted};
use crate::terminal::{Output, note};
use crate::threads;

/// Where a daemon listens where nothing is said.
const DAEMON: &str = "http://127.0.0.1:7341";

/// Which session, of which daemon.
#[derive(Debug, clap::Args)]
struct Of {
    /// The session
    #[arg(value_name = "TYPE/ID")]
    session: EntityRef,
    /// Why, for the record
    #[arg(long, default_value = "")]
    reason: String,
    /// The run that was seen: refused where it isn't the last one any more
    #[arg(long, value_name = "N")]
    run_seq: Option<u32>,
    /// The daemon (http://HOST:PORT or https://HOST:PORT)
    #[arg(long, value_name = "URL", default_value = DAEMON)]
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    json: bool,
}

/// Stops a session of a daemon for good
///
/// What is queued of it never starts, and what runs is stopped now, also in the middle of a
/// host call. The owner of the key and the reason are recorded, and a restart doesn't run it again.
///
/// Exit code: 0 it is being stopped, 1 it isn't (it has stopped already, or there is none), 2 no
/// daemon there or no key that may.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cancel Session/42 --reason \"wrong branch\"\n  \
    sandglass cancel Session/42 --reason late --api-key-env OPERATOR_KEY")]
pub(crate) struct CancelArguments {
    #[command(flatten)]
    of: Of,
}

/// Has a session go on that is BLOCKED
///
/// Its next run begins, with the handlers dispatched anew that the stop has cut.
///
/// Exit code: 0 it goes on, 1 it doesn't (it has a run, it is over, or there is none), 2 no
/// daemon there or no key that may.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass resume Session/42\n  \
    sandglass resume Session/42 --limit run_timeout=2h --reason \"nearly done\"")]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    of: Of,
    /// A limit of the next run that is to be another than the spec's; may be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE")]
    limits: Vec<String>,
}

pub(crate) fn cancel(CancelArguments { of }: &CancelArguments) -> anyhow::Result<Exit> {
    ask(of, "cancel", Map::new(), "is stopped")
}

pub(crate) fn resume(ResumeArguments { of, limits }: &ResumeArguments) -> anyhow::Result<Exit> {
    let limits = limits.iter().map(|limit| named(limit)).collect::<Result<Map<_, _>, _>>()?;
    let body = [("limits".to_owned(), Value::Object(limits))].into_iter().collect();
    ask(of, "resume", body, "goes on")
}

/// `NAME=VALUE`; a number is one.
fn named(limit: &str) -> anyhow::Result<(String, Value)> {
    let (name, value) = limit.split_once('=').ok_or_else(|| {
        anyhow::anyhow!("`--limit {limit}` names no value; write it as run_timeout=2h")
    })?;
    let number = value.parse::<u64>().ok().map(Value::from);
    Ok((name.to_owned(), number.unwrap_or_else(|| value.into())))
}

fn ask(of: &Of, what: &str, mut body: Map<String, Value>, done: &str) -> anyhow::Result<Exit> {
    let base = of.url.trim_end_matches('/');
    let (entity_type, id) = (of.session.entity_type(), of.session.id());
    let [entity_type, id] = [entity_type, id].map(fetch::path_segment);
    let address = fetch::address(&format!("{base}/v1/sessions/{entity_type}/{id}/{what}"))?;
    let client = fetch::Client::new(&of.access, &address)?;
    body.insert("reason".to_owned(), of.reason.clone().into());
    if let Some(run_seq) = of.run_seq {
        body.insert("run_seq".to_owned(), run_seq.into());
    }
    let body = Value::Object(body);
    let asked = client.post(&address, &body);
    match threads::start(Some(1))?.block_on(asked)? {
        Posted::Taken(answer) => {
            let mut output = Output::new();
            if of.json {
                output.json(&answer)?;
            } else {
                output.line(format_args!("{} {done}", of.session))?;
                if answer["recorded"] == json!(false) {
                    note("the journal takes nothing now; the record follows when it does");
                }
            }
            Ok(Exit::Ok)
        }
        Posted::Refused(why) => {
            note(&why);
            Ok(Exit::Failed)
        }
    }
}
