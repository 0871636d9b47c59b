//! `sandglass up`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::compiling;
use crate::exit::Exit;
use crate::{threads, tls, up};

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
    pub(crate) specs: PathBuf,
    /// Where to listen; other than on a loopback address a key is needed
    /// [default: 127.0.0.1:7341]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Keep everything in this journal, which is made if there is none; without one it is
    /// gone with the process
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Keep compiled modules in this folder for the next start; it is made if there is none,
    /// and must be this user's alone
    #[arg(long, value_name = "DIR")]
    pub(crate) compiled_cache: Option<PathBuf>,
    /// An environment variable that holds a key for everything; its name is the owner's
    #[arg(long, value_name = "VAR")]
    pub(crate) api_key_env: Vec<String>,
    /// Serve the workflow definitions (*.json) of this folder, too, as an OpenWOP host whose
    /// clients have the key of the first `--api-key-env`
    #[arg(long, value_name = "DIR", requires = "api_key_env")]
    pub(crate) workflows: Option<PathBuf>,
    /// A folder of node packs for those: folders with a pack.json and a module.wasm
    #[arg(long, value_name = "DIR", requires = "workflows")]
    pub(crate) packs: Option<PathBuf>,
    /// Settings, keys and secrets (TOML); what is said here goes before it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compiling: compiling::Arguments,
    #[command(flatten)]
    pub(crate) tls: tls::Arguments,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let threads = threads::start(None)?;
    let ended = threads.block_on(up::run(arguments));
    // What is still running then was told to end, and has had its time.
    threads.shutdown_background();
    ended
}

/// An address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, as in 127.0.0.1:7341 or [::1]:7341")
}
