//! `sandglass cluster`: the hosts that share a journal, draining one of them, and what they run.

mod generations;

use std::fmt::Write as _;

use anyhow::Context as _;
use sandglass_model::Refusal;
use sandglass_source::printable;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::generations::{ActivateArguments, Generation, UpgradeFormatArguments};
use crate::duration::format_millis;
use crate::exit::Exit;
use crate::fetch::{self, Posted};
use crate::terminal::{Output, Tone, count, note};
use crate::threads;

/// The path of the cluster, and of draining a host of it.
const CLUSTER: &str = "/v1/cluster";
const DRAIN: &str = "/v1/cluster/drain";
/// How many characters of the id of a host are shown: enough to tell hosts apart.
const ID_CHARS: usize = 8;

/// Shows and drains the hosts of a cluster, and activates what they run
///
/// The hosts of a cluster share a journal in a PostgreSQL database. Each owns some of its 64
/// partitions, and forwards requests about other entities to their owners.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(StatusArguments),
    Drain(DrainArguments),
    Activate(ActivateArguments),
    UpgradeFormat(UpgradeFormatArguments),
}

/// Shows the hosts of a cluster, and how many partitions each owns
///
/// As the host at URL sees them: a live one beats every second; a silent one has shown no new beat for 2 s,
/// and is declared dead after its TTL; a draining one gives its partitions away; a dead one never
/// returns. Each runs the active generation of specs and modules, unless it is still loading that one, or
/// cannot run it; the reason is below the host. Dead hosts are shown only while they own partitions, and with --json.
///
/// Exit code: 0 all partitions have an owner that is not dead, 1 some have none, as for a moment while they
/// move, or the host at URL does not reach the database, 2 the daemon cannot be reached, is not a member of
/// a cluster, or the key may not read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cluster status http://127.0.0.1:7341\n  \
    sandglass cluster status https://host-1.example:7341 --api-key-env READER_KEY\n  \
    sandglass cluster status http://127.0.0.1:7341 --json | jq '.hosts[] | select(.state == \"silent\")'")]
struct StatusArguments {
    /// A host of the cluster (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the response as one JSON object
    #[arg(long)]
    json: bool,
}

/// Has a host give its partitions to the others, for example before it is stopped
///
/// Each partition moves when it is quiet, so no handler is interrupted and no request fails. The host
/// continues to accept requests, and forwards them. `sandglass cluster status` shows what it still owns.
///
/// Exit code: 0 recorded, 1 there is no such live host, or the daemon is not a member of a cluster, 2 the
/// daemon cannot be reached, or the key may not operate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass cluster drain http://host-1.example:7341\n  \
    sandglass cluster drain http://host-1.example:7341 --undo\n  \
    sandglass cluster drain 9f86d081884c7d659a2feaa0c55ad015 --via http://host-2.example:7341 \
    --api-key-env OPERATOR_KEY")]
struct DrainArguments {
    /// The address of the host (http://HOST:PORT or https://HOST:PORT); with --via, its id or name
    #[arg(value_name = "HOST")]
    host: String,
    /// Send the request to this host of the cluster
    #[arg(long, value_name = "URL")]
    via: Option<String>,
    /// End the drain: the host gets partitions again
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    access: fetch::Access,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(Arguments { command }: &Arguments) -> anyhow::Result<Exit> {
    match command {
        Command::Status(arguments) => status(arguments),
        Command::Drain(arguments) => drain(arguments),
        Command::Activate(arguments) => generations::activate(arguments),
        Command::UpgradeFormat(arguments) => generations::upgrade_format(arguments),
    }
}

/// What is shown of a cluster.
#[derive(Debug, Deserialize)]
struct Cluster {
    /// The host that responded.
    host: String,
    #[serde(default = "is_assumed")]
    has_lease: bool,
    hosts: Vec<Host>,
    partitions: Vec<Partition>,
    /// The active one.
    #[serde(default)]
    generation: Option<u64>,
    #[serde(default)]
    generations: Vec<Generation>,
}

#[derive(Debug, Deserialize)]
struct Host {
    host: String,
    name: String,
    url: Option<String>,
    version: String,
    state: State,
    partitions: u64,
    last_seen_ms: Option<u64>,
    ttl_ms: Option<u64>,
    refusal: Option<Refusal>,
    #[serde(default)]
    generation: Option<u64>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Live,
    Draining,
    Silent,
    Dead,
}

#[derive(Debug, Deserialize)]
struct Partition {
    owner: Option<String>,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Draining => "draining",
            Self::Silent => "silent",
            Self::Dead => "dead",
        }
    }

    const fn tone(self) -> Tone {
        match self {
            Self::Live => Tone::Good,
            Self::Draining => Tone::Doubtful,
            Self::Silent | Self::Dead => Tone::Bad,
        }
    }
}

impl Cluster {
    /// How many partitions no host serves.
    fn without_owner(&self) -> usize {
        let is_alive = |id: &String| {
            self.hosts.iter().any(|host| host.host == *id && host.state != State::Dead)
        };
        let owners = self.partitions.iter().map(|one| one.owner.as_ref());
        owners.filter(|owner| !owner.is_some_and(is_alive)).count()
    }
}

fn status(arguments: &StatusArguments) -> anyhow::Result<Exit> {
    let client = fetch::Client::new(&arguments.access, &arguments.url)?;
    let value: Value =
        threads::start(Some(1))?.block_on(client.json(CLUSTER, "the status of a cluster"))?;
    let output = Output::new();
    let cluster: Cluster = serde_json::from_value(value.clone())
        .context("the response is not the status of a cluster")?;
    if arguments.json {
        output.json(&value)?;
    } else {
        print(&cluster, &output)?;
    }
    let is_whole = cluster.has_lease && cluster.without_owner() == 0;
    Ok(if is_whole { Exit::Ok } else { Exit::Failed })
}

fn print(cluster: &Cluster, output: &Output) -> anyhow::Result<()> {
    let shown = cluster.hosts.iter().filter(|one| one.state != State::Dead || one.partitions > 0);
    for host in shown {
        output.line(describe(host, &cluster.host, output))?;
        if let Some(error) = &host.error {
            output.line(format_args!("  {}", output.paint(Tone::Bad, printable(error))))?;
        }
    }
    for problem in problems(cluster) {
        output.line(output.paint(Tone::Bad, printable(&problem).to_string()))?;
    }
    let without = cluster.without_owner();
    let owned = cluster.partitions.len() - without;
    let mut line = format!("{} owned", count(owned, "partition"));
    if without > 0 {
        let _ = write!(line, ", {without} without a live owner");
    }
    output.line(line)?;
    generations::print(cluster.generation, &cluster.generations, output)
}

/// Earlier versions of the daemon do not state it.
const fn is_assumed() -> bool {
    true
}

/// What is wrong with the host that responded, and between it and others.
fn problems(cluster: &Cluster) -> Vec<String> {
    let own = cluster.hosts.iter().find(|host| host.host == cluster.host);
    let own_ttl = own.and_then(|host| host.ttl_ms);
    let mut problems = Vec::new();
    if !cluster.has_lease {
        problems.push(
            "this host has no lease: it does not reach the database, or has not yet, so this may be old"
                .to_owned(),
        );
    }
    for host in cluster.hosts.iter().filter(|host| host.state != State::Dead) {
        if let Some(refusal) = host.refusal {
            problems.push(format!("{} {}", host.name, refusal.message()));
        }
        if let (Some(own), Some(ttl)) = (own_ttl, host.ttl_ms)
            && own != ttl
        {
            let (own, ttl) = (format_millis(own), format_millis(ttl));
            problems.push(format!(
                "{} has `ttl` {ttl} and this host {own}; the longer one counts between them, so give all \
                 hosts the same one",
                host.name
            ));
        }
    }
    problems
}

/// A line about a host; `own` is the one that responded.
fn describe(host: &Host, own: &str, output: &Output) -> String {
    let id: String = host.host.chars().take(ID_CHARS).collect();
    let state = output.paint(host.state.tone(), format!("{:<8}", host.state.as_str()));
    let url = host.url.as_deref().unwrap_or("not a member");
    let mut rest = format!(
        "{:<22} {url}  {}  {}",
        host.name,
        count(host.partitions, "partition"),
        host.version
    );
    if let Some(generation) = host.generation {
        let _ = write!(rest, "  generation {generation}");
    }
    if host.host == own {
        rest.push_str("  (this host)");
    } else if let Some(millis) = host.last_seen_ms {
        let _ = write!(rest, "  seen {} ago", format_millis(millis));
    }
    format!("{} {state} {}", printable(&id), printable(&rest))
}

fn drain(arguments: &DrainArguments) -> anyhow::Result<Exit> {
    let DrainArguments { host, via, undo, access, json } = arguments;
    let url = via.as_ref().unwrap_or(host);
    let client = fetch::Client::new(access, url).with_context(|| match via {
        Some(_) => "--via takes the address of a host of the cluster",
        None => "HOST is an address, or with --via the id or name of a host",
    })?;
    let mut body = json!({ "draining": !undo });
    if via.is_some() {
        body["host"] = host.as_str().into();
    }
    match threads::start(Some(1))?.block_on(client.post(DRAIN, &body))? {
        Posted::Accepted(response) => {
            let output = Output::new();
            if *json {
                output.json(&response)?;
            } else {
                let id = response["host"].as_str().unwrap_or(host);
                let does =
                    if *undo { "gets partitions again" } else { "gives its partitions away" };
                output.line(format_args!("host {} {does}", printable(id)))?;
            }
            Ok(Exit::Ok)
        }
        Posted::Refused(why) => {
            note(&why);
            Ok(Exit::Failed)
        }
    }
}
