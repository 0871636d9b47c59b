//! `sandglass up`: runs the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use sandglass_server::{ClusterFiles, DaemonOptions, DaemonServer};

use crate::exit::Exit;
use crate::{compiling, journal_place, serving, tls};

/// Serves the entities of a folder of specs over HTTP
///
/// /openapi.json describes the interface. SIGHUP reloads the folder, the configuration and the
/// certificate: all of them, or, if one has an error, none. SIGTERM or Ctrl-C refuses new requests,
/// gives handlers the grace period to end, and then stops and records the rest; a second one ends
/// the process at once. During startup, one is enough to end it.
///
/// Exit code: 0 stopped in order, 1 stopped, but some endings could not be recorded, 2 a folder,
/// configuration, journal or address cannot be used, 4 stopped because another process has taken the
/// journal, 130 ended at once.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass up --specs guest-fixtures/incident\n  \
    sandglass up --specs specs --journal runs.db\n  \
    JOURNAL=postgresql://app:PASSWORD@db.example/app sandglass up --specs specs --journal-env JOURNAL\n  \
    API_KEY=$(openssl rand -hex 32) sandglass up --specs specs --listen 0.0.0.0:7341 --api-key-env API_KEY\n  \
    sandglass up --specs specs --config sandglass.toml\n  \
    sandglass up --specs specs --tls-certificate chain.pem --tls-key key.pem\n  \
    sandglass up --specs specs --journal-env JOURNAL --listen 0.0.0.0:7341 --api-key-env API_KEY \
    --advertise http://host-1.example:7341 --cluster-key-env CLUSTER_KEY\n  \
    sandglass up --specs specs --workflows workflows --packs packs --api-key-env API_KEY\n  \
    curl -X POST http://127.0.0.1:7341/v1/entities/Session/1\n  \
    curl -X POST http://127.0.0.1:7341/v1/entities/Session/1/actions/ResumeByHand\n  \
    curl http://127.0.0.1:7341/v1/entities/Session/1")]
pub(crate) struct Arguments {
    /// A folder of specs (*.ioa.toml), with their modules and manifests, or with a scenario*.toml
    /// that declares them
    #[arg(long, value_name = "DIR")]
    specs: PathBuf,
    /// The address to listen on; one that is not a loopback address requires a key
    /// [default: 127.0.0.1:7341]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    journal: journal_place::Arguments,
    /// Keep compiled modules in this folder for the next start; it is created if it does not exist,
    /// and other users must not be able to write to it
    #[arg(long, value_name = "DIR")]
    compiled_cache: Option<PathBuf>,
    /// An environment variable that holds a key with all permissions; its name becomes that of the
    /// key's owner; may be repeated
    #[arg(long, value_name = "VAR")]
    api_key_env: Vec<String>,
    /// Also serve the workflow definitions (*.json) of this folder, as an OpenWOP host whose clients
    /// use the key of the first --api-key-env; all hosts of a cluster need the same folder and key
    #[arg(long, value_name = "DIR", requires = "api_key_env")]
    workflows: Option<PathBuf>,
    /// A folder of node packs for the workflows: folders with a pack.json and a module.wasm
    #[arg(long, value_name = "DIR", requires = "workflows")]
    packs: Option<PathBuf>,
    /// A file with settings, keys and secrets (TOML); flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Share the journal, which must be a database, with other hosts, which reach this one at this
    /// address (http://HOST:PORT or https://HOST:PORT)
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// The environment variable that holds the key that all hosts of the cluster share, or two keys while it
    /// is replaced; required with API keys, and beyond this machine, unless there is a --cluster-ca
    #[arg(long, value_name = "VAR")]
    cluster_key_env: Option<String>,
    /// A file with the CA of all hosts (PEM): hosts prove by its certificates that they are hosts, and need
    /// no key over HTTPS; SIGHUP reads it and the certificate again
    #[arg(long, value_name = "FILE")]
    cluster_ca: Option<PathBuf>,
    /// The certificate chain of this host for the others (PEM); by default that of --tls-certificate
    #[arg(long, value_name = "FILE", requires = "cluster_cert_key")]
    cluster_cert: Option<PathBuf>,
    /// The private key of the certificate of this host (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_cert_key: Option<PathBuf>,
    /// Activate what the folder contains, so that all hosts of the cluster run it; otherwise a folder that
    /// differs from what is active is only proposed (see `sandglass cluster activate`)
    #[arg(long)]
    activate: bool,
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
        journal: arguments.journal.place()?,
        compiled_cache: arguments.compiled_cache,
        api_key_env: arguments.api_key_env,
        workflows: arguments.workflows,
        packs: arguments.packs,
        advertise: arguments.advertise,
        cluster_key_env: arguments.cluster_key_env,
        cluster_files: ClusterFiles {
            ca: arguments.cluster_ca,
            certificate: arguments.cluster_cert.zip(arguments.cluster_cert_key),
        },
        tls: arguments.tls.files(),
        compile_helper: compiling::helper(),
        compile_timeout: arguments.compiling.compile_timeout,
        compile_memory_bytes: arguments.compiling.compile_memory,
        activate: arguments.activate,
    };
    serving::execute(|report| DaemonServer::start(options, report))
}

/// An address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:7341 or [::1]:7341")
}
