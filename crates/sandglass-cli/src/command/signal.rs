//! `sandglass signal`: sends a signal to an entity of a daemon.

use std::path::Path;

use anyhow::{Context as _, ensure};
use sandglass_host::file;
use sandglass_liveness::decide::SIGNAL_MAX_BYTES;
use sandglass_model::EntityRef;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::fetch::{self, Posted};
use crate::terminal::{Output, note};
use crate::threads;

/// Sends a signal to an entity of a daemon
///
/// A signal is a notice: it is recorded, changes no state and does not advance the sequence. If the
/// entity's state lists the name in reset_on, the timer of the state restarts. For a session it is
/// activity, unless the spec lists the name as synthetic, and progress if the spec lists it as
/// material.
///
/// Exit code: 0 the signal is recorded, 1 the entity does not take it (it does not exist, has ended,
/// or is a session that has stopped), 2 the name, the payload or the daemon cannot be used, or the
/// key lacks the permission.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sandglass signal http://127.0.0.1:7341 Order/7 BankCalledBack\n  \
    sandglass signal http://127.0.0.1:7341 Order/7 BankCalledBack --payload '{\"paid\": true}'\n  \
    sandglass signal https://sandglass.example:7341 Session/42 milestone --payload @report.json \
    --api-key-env ACTOR_KEY\n  \
    make-report | sandglass signal http://127.0.0.1:7341 Session/42 milestone --payload -")]
pub(crate) struct Arguments {
    /// The daemon (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "URL")]
    url: String,
    /// The entity
    #[arg(value_name = "TYPE/ID")]
    entity: EntityRef,
    /// The name of the signal
    #[arg(value_name = "NAME")]
    name: String,
    /// The payload: a JSON value, or @ and the path of a file with one; - reads standard input
    /// [default: null]
    #[arg(long, value_name = "JSON|@FILE|-", allow_negative_numbers = true)]
    payload: Option<String>,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { url, entity, name, payload, access, json } = arguments;
    ensure!(!name.is_empty(), "the signal has no name");
    let payload = payload.as_deref().map(read_payload).transpose()?;
    let client = fetch::Client::new(access, url)?;
    let path = format!("{}/signals/{}", fetch::entity_path(entity), fetch::path_segment(name));
    let body = payload.unwrap_or_default();
    match threads::start(Some(1))?.block_on(client.post(&path, &body))? {
        Posted::Accepted(_) => {
            let output = Output::new();
            if *json {
                output.json(&json!({ "entity": entity, "signal": name }))?;
            } else {
                let name = sandglass_source::printable(name);
                output.line(format_args!("signal {name} to {entity} is recorded"))?;
            }
            Ok(Exit::Ok)
        }
        Posted::Refused(why) => {
            note(&why);
            Ok(Exit::Failed)
        }
    }
}

/// Reads the payload that an argument states or names. It is sent as it is recorded, which may take
/// more bytes than the text.
fn read_payload(argument: &str) -> anyhow::Result<Value> {
    let max_bytes = SIGNAL_MAX_BYTES as u64;
    let text = match (argument, argument.strip_prefix('@')) {
        ("-" | "@-", _) => file::text_of(std::io::stdin(), Path::new("-"), max_bytes),
        (_, Some(path)) => file::read_text(Path::new(path), max_bytes),
        (text, None) => Ok(text.to_owned()),
    };
    let text = text.context("--payload")?;
    let payload: Value =
        sandglass_source::json::read(&text).context("--payload: it is not JSON")?;
    let bytes = payload.to_string().len();
    ensure!(
        bytes <= SIGNAL_MAX_BYTES,
        "--payload: as JSON it has {bytes} bytes, and {SIGNAL_MAX_BYTES} bytes are allowed"
    );
    Ok(payload)
}
