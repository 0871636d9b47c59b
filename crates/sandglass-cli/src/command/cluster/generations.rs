//! The generations of a cluster: which one its hosts run, and activating another one.

use std::fmt::Write as _;

use anyhow::Context as _;
use sandglass_source::printable;
use serde::Deserialize;
use serde_json::json;

use crate::exit::Exit;
use crate::fetch::{self, Posted};
use crate::terminal::{Output, note};
use crate::threads;

const ACTIVATE: &str = "/v1/cluster/activate";
const UPGRADE_FORMAT: &str = "/v1/cluster/upgrade-format";

/// Has all hosts run a generation: the specs, modules and grants that a host has proposed
///
/// A host proposes what its folder contains if it differs from all generations. The host at URL checks
/// first that it can run the generation; the others follow within seconds, without a failed request.
/// Activating an earlier generation takes a change back. `sandglass cluster status` lists the generations.
///
/// Exit code: 0 active, also if it was before, 1 refused, for example because there is no such generation
/// or the host cannot run it; nothing has changed, 2 the daemon cannot be reached, or the key may not
/// operate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cluster activate 4 http://127.0.0.1:7341\n  \
    sandglass cluster activate 4 http://127.0.0.1:7341 --replacing 3\n  \
    sandglass cluster activate 3 https://host-1.example:7341 --api-key-env OPERATOR_KEY --json")]
pub(super) struct ActivateArguments {
    /// The number of the generation
    #[arg(value_name = "GENERATION", value_parser = clap::value_parser!(u64).range(1..))]
    generation: u64,
    /// A host of the cluster (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "URL")]
    url: String,
    /// Change nothing unless this generation is active, for example because a colleague has activated
    /// another one
    #[arg(long, value_name = "GENERATION")]
    replacing: Option<u64>,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// Has all hosts write the newest format of records that the host at URL has
///
/// A cluster keeps the format with which it began until all hosts run a version that reads the newer one.
/// Versions that cannot read it are refused afterwards. This cannot be undone.
///
/// Exit code: 0 it is written, also if it was before, 1 a host cannot read it, which is named; nothing has
/// changed, 2 the daemon cannot be reached, or the key may not operate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cluster upgrade-format http://127.0.0.1:7341\n  \
    sandglass cluster upgrade-format https://host-1.example:7341 --api-key-env OPERATOR_KEY")]
pub(super) struct UpgradeFormatArguments {
    /// A host of the cluster that runs the newest version (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// A generation that can be activated.
#[derive(Debug, Deserialize)]
pub(super) struct Generation {
    generation: u64,
    state: GenerationState,
    proposed_by: String,
    version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GenerationState {
    Active,
    Proposed,
    Replaced,
}

/// Prints which generation is active, and which ones can be activated.
pub(super) fn print(
    active: Option<u64>,
    generations: &[Generation],
    output: &Output,
) -> anyhow::Result<()> {
    let Some(active) = active else { return Ok(()) };
    output.line(format_args!("generation {active} is active"))?;
    let of = |state| generations.iter().filter(move |one| one.state == state);
    for Generation { generation, proposed_by, version, .. } in of(GenerationState::Proposed) {
        let by = printable(proposed_by);
        let version = printable(version);
        output.line(format_args!("generation {generation} is proposed by {by} ({version})"))?;
    }
    let mut others = String::new();
    for one in of(GenerationState::Replaced) {
        let separator = if others.is_empty() { "" } else { ", " };
        let _ = write!(others, "{separator}{}", one.generation);
    }
    if !others.is_empty() {
        output.line(format_args!("replaced generations: {others}"))?;
    }
    Ok(())
}

pub(super) fn activate(arguments: &ActivateArguments) -> anyhow::Result<Exit> {
    let ActivateArguments { generation, url, replacing, access, json } = arguments;
    let mut body = json!({ "generation": generation });
    if let Some(replacing) = replacing {
        body["replacing"] = (*replacing).into();
    }
    post((access, url), ACTIVATE, &body, *json, |response| match response["replaced"].as_u64() {
        Some(replaced) if replaced == *generation => {
            format!("generation {generation} was active already")
        }
        Some(replaced) => format!("generation {generation} is active, and has replaced {replaced}"),
        None => format!("generation {generation} is active"),
    })
}

pub(super) fn upgrade_format(arguments: &UpgradeFormatArguments) -> anyhow::Result<Exit> {
    let UpgradeFormatArguments { url, access, json } = arguments;
    post((access, url), UPGRADE_FORMAT, &json!({}), *json, |response| {
        format!("records are written in format {}", response["writes_format"])
    })
}

/// Posts a request, and prints the response as JSON or as `describe` does.
fn post(
    (access, url): (&fetch::Access, &str),
    path: &'static str,
    body: &serde_json::Value,
    is_json: bool,
    describe: impl FnOnce(&serde_json::Value) -> String,
) -> anyhow::Result<Exit> {
    let client = fetch::Client::new(access, url).context("URL is the address of a host")?;
    match threads::start(Some(1))?.block_on(client.post(path, body))? {
        Posted::Accepted(response) => {
            let output = Output::new();
            if is_json {
                output.json(&response)?;
            } else {
                output.line(printable(&describe(&response)))?;
            }
            Ok(Exit::Ok)
        }
        Posted::Refused(why) => {
            note(&why);
            Ok(Exit::Failed)
        }
    }
}
