//! `sandglass openwop`: runs an OpenWOP host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sandglass_openwop::{PackLimits, Settings};
use sandglass_server::{OpenWopOptions, OpenWopServer};
use sandglass_source::duration;

use super::run::DEADLINE_MAX;
use super::up::address;
use crate::exit::Exit;
use crate::{compiling, journal_place, serving, tls};

/// Serves the workflows of a folder over HTTP, as an OpenWOP host
///
/// The journal keeps runs, their limits and their events: a run in progress when the host ends
/// continues with the next start, or fails, as its definition states. A definition or pack with
/// errors is reported and skipped. /v1/openapi.json describes the interface; clients send the key
/// as `Authorization: Bearer KEY`. SIGTERM or Ctrl-C refuses new requests, gives nodes the grace
/// period to end, and leaves the rest to the next start. SIGHUP reloads the certificate.
///
/// Exit code: 0 stopped in order, 2 a folder, key, journal or address cannot be used, 4 stopped because
/// another process has taken the journal, 130 ended at once.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    OPENWOP_KEY=$(openssl rand -hex 32) sandglass openwop --workflows workflows \\\n      \
    --api-key-env OPENWOP_KEY\n  \
    sandglass openwop --workflows workflows --packs packs --journal runs.db \\\n      \
    --listen 127.0.0.1:7350 --api-key-env OPENWOP_KEY\n  \
    curl http://127.0.0.1:7350/.well-known/openwop\n  \
    curl -X POST http://127.0.0.1:7350/v1/runs -H \"Authorization: Bearer $OPENWOP_KEY\" \\\n      \
    -H 'Content-Type: application/json' -d '{\"workflowId\": \"linear\"}'")]
pub(crate) struct Arguments {
    /// A folder of workflow definitions (*.json)
    #[arg(long, value_name = "DIR")]
    workflows: PathBuf,
    /// A folder of node packs: folders with a pack.json and a module.wasm
    #[arg(long, value_name = "DIR")]
    packs: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:7350")]
    listen: SocketAddr,
    /// The environment variable that holds the key of clients
    #[arg(long, value_name = "VAR")]
    api_key_env: String,
    #[command(flatten)]
    journal: journal_place::Arguments,
    #[command(flatten)]
    tls: tls::Arguments,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    compiling: compiling::Arguments,
}

/// The limits of runs.
#[derive(Clone, Debug, clap::Args)]
struct Bounds {
    /// Most node executions of a run: the upper limit of `recursionLimit`
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    max_node_executions: u32,
    /// Longest duration of a run, from 1s: the upper limit of `runTimeoutMs`
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = run_duration)]
    max_run_duration: Duration,
    /// Most turns of a run's orchestrator: the upper limit of `maxLoopIterations`
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    max_loop_iterations: u32,
    /// Most runs in progress at once; further ones are refused with 429
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    max_active_runs: u32,
    /// Memory limit of a pack's node, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pack_memory_mib: u32,
    /// Time limit of a pack's node
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pack_execution: Duration,
    /// Fuel limit of a pack's node, about one unit per instruction [default: that of the pack, or not
    /// counted]
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u64).range(1..))]
    pack_fuel: Option<u64>,
}

fn duration(text: &str) -> Result<Duration, String> {
    duration::within(text, &(Duration::from_millis(1)..=DEADLINE_MAX))
}

fn run_duration(text: &str) -> Result<Duration, String> {
    duration::within(text, &(Duration::from_secs(1)..=DEADLINE_MAX))
}

pub(crate) fn execute(arguments: Arguments) -> anyhow::Result<Exit> {
    let options = OpenWopOptions {
        workflows: arguments.workflows,
        packs: arguments.packs,
        listen: arguments.listen,
        api_key_env: arguments.api_key_env,
        journal: arguments.journal.place()?,
        tls: arguments.tls.files(),
        settings: settings(&arguments.bounds),
        compile_helper: arguments.compiling.helper(),
    };
    serving::execute(|report| OpenWopServer::start(options, report))
}

fn settings(bounds: &Bounds) -> Settings {
    Settings {
        max_node_executions: bounds.max_node_executions.into(),
        max_run_duration: bounds.max_run_duration,
        max_loop_iterations: bounds.max_loop_iterations.into(),
        max_active_runs: bounds.max_active_runs as usize,
        packs: PackLimits {
            max_memory_bytes: u64::from(bounds.pack_memory_mib) << 20,
            max_execution: bounds.pack_execution,
            fuel: bounds.pack_fuel,
        },
        ..Settings::default()
    }
}
