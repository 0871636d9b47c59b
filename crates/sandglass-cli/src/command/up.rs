//! `sandglass up`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use sandglass_server::{DaemonOptions, DaemonServer};

use crate::exit::Exit;
use crate::{compiling, serving, tls};

/// Serves the entities of a folder of specs over HTTP
///
/// The interface is described by the document at /openapi.json. SIGHUP reads the folder,
/// the configuration and the certificate again: all of it is taken, or, where something is wrong, none.
/// SIGTERM or Ctrl-C accepts no more, lets handlers end for the grace, stops and records
/// the rest; a second one ends at once. While it still starts, it just stops.
///
/// Exit code: 0 stopped orderly, 1 stopped and not all could be recorded, 2 a folder,
/// configuration, journal or address can't be used, 130 stopped at once.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass up --specs guest-fixtures/incident\n  \
    sandglass up --specs specs --journal runs.db\n  \
    API_KEY=$(openssl rand -hex 32) sandglass up --specs specs --listen 0.0.0.0:7341 --api-key-env API_KEY\n  \
    sandglass up --specs specs --config sandglass.toml\n  \
    sandglass up --specs specs --tls-certificate chain.pem --tls-key key.pem\n  \
    sandglass up --specs specs --workflows workflows --packs packs --api-key-env API_KEY\n  \
    curl -X POST http://127.0.0.1:7341/v1/entities/Session/1\n  \
    curl -X POST http://127.0.0.1:7341/v1/entities/Session/1/actions/ResumeByHand\n  \
    curl http://127.0.0.1:7341/v1/entities/Session/1")]
pub(crate) struct Arguments {
    /// A folder of specs (*.ioa.toml), with their modules and manifests beside them or
    /// declared in a scenario*.toml
    #[arg(long, value_name = "DIR")]
    specs: PathBuf,
    /// Where to listen; other than on a loopback address a key is needed
    /// [default: 127.0.0.1:7341]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Keep everything in this journal, which is made if there is none; without one it is
    /// gone with the process
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Keep compiled modules in this folder for the next start; it is made if there is none,
    /// and must be this user's alone
    #[arg(long, value_name = "DIR")]
    compiled_cache: Option<PathBuf>,
    /// An environment variable that holds a key for everything; its name is the owner's
    #[arg(long, value_name = "VAR")]
    api_key_env: Vec<String>,
    /// Serve the workflow definitions (*.json) of this folder, too, as an OpenWOP host whose
    /// clients have the key of the first `--api-key-env`
    #[arg(long, value_name = "DIR", requires = "api_key_env")]
    workflows: Option<PathBuf>,
    /// A folder of node packs for those: folders with a pack.json and a module.wasm
    #[arg(long, value_name = "DIR", requires = "workflows")]
    packs: Option<PathBuf>,
    /// Settings, keys and secrets (TOML); what is said here goes before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    compiling: compiling::Arguments,
    #[command(flatten)]
    tls: tls::Arguments,
}

pub(crate) fn execute(arguments: Arguments) -> anyhow::Result<Exit> {
    let options = DaemonOptions {
        specs: arguments.specs,
        config: arguments.config,
        listen: arguments.listen,
        journal: arguments.journal,
        compiled_cache: arguments.compiled_cache,
        api_key_env: arguments.api_key_env,
        workflows: arguments.workflows,
        packs: arguments.packs,
        tls: arguments.tls.files(),
        compile_helper: compiling::helper(),
        compile_timeout: arguments.compiling.compile_timeout,
        compile_memory_bytes: arguments.compiling.compile_memory,
    };
    serving::execute(|report| DaemonServer::start(options, report))
}

/// An address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, as in 127.0.0.1:7341 or [::1]:7341")
}
