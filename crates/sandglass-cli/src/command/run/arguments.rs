//! `sandglass run`: runs one handler once, and reports on it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use sandglass_host::Destination;
use sandglass_model::EntityRef;
use sandglass_source::{duration, size};

use super::automaton::ENDINGS;
use crate::compiling;

/// Runs one handler in the sandbox and reports on it
///
/// Exit code: 0 completed, 1 the guest returned a failure or an invalid result, 124 its deadline
/// passed, 125 the host could not run it (invalid module, missing import or export, invalid
/// arguments), 126 it trapped or hit a limit, 130 cancelled (Ctrl-C).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass run tool.wasm\n  \
    sandglass run tool.wat --input '{\"city\":\"Oslo\"}' --deadline 5s\n  \
    sandglass run tool.wat --state '{\"status\":\"Open\",\"fields\":{\"city\":\"Oslo\"}}'\n  \
    sandglass run tool.wasm --manifest tools/integration.toml\n  \
    sandglass run tool.wasm --allow-host api.example.com --secret API_KEY=MY_API_KEY\n  \
    sandglass run tool.wasm --input @params.json --journal runs.db --report json | jq .outcome")]
pub(crate) struct Arguments {
    /// The guest: a core module or a component, binary (.wasm) or text (.wat)
    #[arg(value_name = "GUEST")]
    pub(super) guest: PathBuf,
    /// Its manifest [default: the integration.toml beside it that names it, if there is one]. Other
    /// flags add to it or override it
    #[arg(long, value_name = "FILE")]
    pub(super) manifest: Option<PathBuf>,
    /// The action that triggers the handler
    #[arg(long, default_value = "Run", value_name = "A", value_parser = action)]
    pub(super) action: String,
    /// The entity of the handler [default: Run/ and a random id]
    #[arg(long, value_name = "TYPE/ID")]
    pub(super) entity: Option<EntityRef>,
    /// The action's parameters: a JSON object, or @ and the path of a file with one; @- reads
    /// standard input
    #[arg(long, value_name = "JSON|@FILE")]
    pub(super) input: Option<String>,
    /// The entity's state, as the guest sees it: a JSON object, or the path of a file with one. Keys
    /// that it lacks have the values of a new entity
    #[arg(long, value_name = "FILE|JSON")]
    pub(super) state: Option<String>,
    /// An entry of the integration's configuration, which may contain {secret:NAME} and
    /// {field:NAME}; may be repeated
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub(super) config: Vec<(String, String)>,
    /// A secret, and the environment variable with its value [default for those that the manifest
    /// grants: SANDGLASS_SECRET_ and the name of the secret]; may be repeated
    #[arg(long, value_name = "K=ENV", value_parser = pair)]
    pub(super) secret: Vec<(String, String)>,
    /// A host that the guest may reach, at any port (H) or at one (H:PORT); may be repeated
    #[arg(long, value_name = "H", value_parser = Destination::from_str)]
    pub(super) allow_host: Vec<Destination>,
    /// Time limit of the handler
    #[arg(long, default_value = "120s", value_name = "TIME", value_parser = deadline)]
    pub(super) deadline: Duration,
    /// Memory limit of the guest [default: that of the manifest, or 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(super) memory: Option<u64>,
    /// Fuel limit of the guest [default: that of the manifest, or not counted]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) fuel: Option<u64>,
    /// Size limit of its result, and of each response that it receives [default: that of the
    /// manifest, or 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = response)]
    pub(super) max_response: Option<u64>,
    /// Record the handler in this journal, which is created if it does not exist; other entities in
    /// it are left alone
    #[arg(long, value_name = "FILE")]
    pub(super) journal: Option<PathBuf>,
    #[command(flatten)]
    pub(super) compiling: compiling::CachedArguments,
    #[command(flatten)]
    pub(super) optimizing: compiling::Optimizing,
    /// The format of the report
    #[arg(long, default_value = "text", value_name = "FORM")]
    pub(super) report: Form,
}

/// The formats of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Lines for people
    Text,
    /// One JSON object
    Json,
}

/// The longest deadline of a handler.
pub(crate) const DEADLINE_MAX: Duration =
    Duration::from_millis(sandglass_model::limit::MAX_BUDGET_MS);

/// Largest memory of a guest: what 32-bit addresses can reach.
const MEMORY_MAX_BYTES: u64 = 4 << 30;

/// Largest result, and largest response that a guest may receive: as much as a manifest can grant.
const RESPONSE_MAX_BYTES: u64 = 256 << 20;

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

fn action(text: &str) -> Result<String, String> {
    sandglass_model::id::check_name("action", text, sandglass_model::id::NAME_MAX_BYTES)
        .map_err(|error| error.to_string())?;
    if ENDINGS.contains(&text) {
        return Err("this action records how the handler ended; choose another".to_owned());
    }
    Ok(text.to_owned())
}

fn deadline(text: &str) -> Result<Duration, String> {
    duration::within(text, &(Duration::from_millis(1)..=DEADLINE_MAX))
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > MEMORY_MAX_BYTES {
        Err("a guest can address at most 4GiB".to_owned())
    } else {
        Ok(bytes)
    }
}

fn response(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > RESPONSE_MAX_BYTES {
        Err("a result or a response has at most 256MiB".to_owned())
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_and_bounded() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("=b").is_err() && pair("a").is_err());
        assert_eq!(deadline("1m 30s"), Ok(Duration::from_secs(90)));
        for bad in ["", "5", "0s", "-1s", "999999 days"] {
            assert!(deadline(bad).is_err(), "{bad:?}");
        }
        assert!(memory("5GiB").is_err() && memory("4GiB").is_ok());
        assert!(response("257MiB").is_err() && response("256MiB").is_ok());
        assert!(action("HandlerTimedOut").is_err() && action("a\nb").is_err());
    }
}
