//! `sandglass cancel` and `sandglass resume`: an operator's control over the sessions of a daemon.

use sandglass_model::EntityRef;
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::fetch::{self, Posted};
use crate::terminal::{Output, note};
use crate::threads;

/// The address of a daemon with default settings.
const DAEMON: &str = "http://127.0.0.1:7341";

/// The session, and the daemon that runs it.
#[derive(Debug, clap::Args)]
struct Target {
    /// The session
    #[arg(value_name = "TYPE/ID")]
    session: EntityRef,
    /// The reason, for the record
    #[arg(long, default_value = "")]
    reason: String,
    /// The run that you have seen; refused if it is no longer the last one
    #[arg(long, value_name = "N")]
    run_seq: Option<u32>,
    /// The daemon (http://HOST:PORT or https://HOST:PORT)
    #[arg(long, value_name = "URL", default_value = DAEMON)]
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the daemon's response as JSON
    #[arg(long)]
    json: bool,
}

/// Stops a session of a daemon permanently
///
/// Queued handlers never start, and running ones are stopped at once, even inside a host call.
/// The owner of the key and the reason are recorded. A restart does not resume the session.
///
/// Exit code: 0 the session stops, 1 it does not (it has stopped already, or does not exist),
/// 2 the daemon cannot be reached, or the key lacks the permission.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cancel Session/42 --reason \"wrong branch\"\n  \
    sandglass cancel Session/42 --reason late --api-key-env OPERATOR_KEY")]
pub(crate) struct CancelArguments {
    #[command(flatten)]
    target: Target,
}

/// Resumes a session that is BLOCKED
///
/// Its next run starts, and the handlers that the stop cut off are dispatched again.
///
/// Exit code: 0 the session resumes, 1 it does not (it is running or done, or does not exist),
/// 2 the daemon cannot be reached, or the key lacks the permission.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass resume Session/42\n  \
    sandglass resume Session/42 --limit run_timeout=2h --reason \"nearly done\"")]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    target: Target,
    /// Override a limit of the spec for the next run; may be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    limits: Vec<(String, Value)>,
}

pub(crate) fn cancel(CancelArguments { target }: &CancelArguments) -> anyhow::Result<Exit> {
    send(target, "cancel", Map::new(), "is stopped")
}

pub(crate) fn resume(ResumeArguments { target, limits }: &ResumeArguments) -> anyhow::Result<Exit> {
    let limits = Value::Object(limits.iter().cloned().collect());
    send(target, "resume", Map::from_iter([("limits".to_owned(), limits)]), "resumes")
}

/// Parses `NAME=VALUE`; digits are a number.
fn limit(text: &str) -> Result<(String, Value), &'static str> {
    let (name, value) =
        text.split_once('=').ok_or("a value is missing; write it as run_timeout=2h")?;
    let number = value.parse::<u64>().ok().map(Value::from);
    Ok((name.to_owned(), number.unwrap_or_else(|| value.into())))
}

fn send(
    target: &Target,
    operation: &str,
    mut body: Map<String, Value>,
    done: &str,
) -> anyhow::Result<Exit> {
    let client = fetch::Client::new(&target.access, &target.url)?;
    let path = format!("{}/{operation}", fetch::session_path(&target.session));
    body.insert("reason".to_owned(), target.reason.clone().into());
    if let Some(run_seq) = target.run_seq {
        body.insert("run_seq".to_owned(), run_seq.into());
    }
    let body = Value::Object(body);
    match threads::start(Some(1))?.block_on(client.post(&path, &body))? {
        Posted::Accepted(response) => {
            let output = Output::new();
            if target.json {
                output.json(&response)?;
            } else {
                output.line(format_args!("{} {done}", target.session))?;
                if response["recorded"] == json!(false) {
                    note("the journal takes no records now; the record follows when it does");
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
