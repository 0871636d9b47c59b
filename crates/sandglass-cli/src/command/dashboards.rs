//! `sandglass dashboards`: writes dashboards, monitors and rules for the metrics of a host.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_telemetry::Prefix;
use sandglass_telemetry::table::TABLE;
use serde_json::json;

use crate::exit::Exit;
use crate::terminal::{Output, printable_path};

macro_rules! files {
    ($($name:literal,)*) => {
        [$(($name, include_str!(concat!("../../../../dashboards/", $name))),)*]
    };
}

/// The files of `dashboards/`, sorted by name.
const FILES: [(&str, &str); 7] = files![
    "README.md",
    "datadog/handler-liveness-monitors.json",
    "datadog/handler-liveness-overview.json",
    "datadog/openmetrics.yaml",
    "grafana/handler-liveness.json",
    "prometheus/rules.test.yml",
    "prometheus/rules.yml",
];

/// The id and the title of the dashboard in Grafana.
const UID: &str = "sandglass-handler-liveness";
const TITLE: &str = "Sandglass: Handler Liveness";
/// Longest id that Grafana accepts, in characters.
const UID_MAX_CHARS: usize = 40;

/// Writes dashboards, monitors and alerts for the metrics of a host
///
/// For Grafana, Prometheus and Datadog, with a README.md about them. If a file exists with other
/// content, nothing is written.
///
/// Exit code: 0 written, 2 the prefix or the folder cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass dashboards --out dashboards\n  \
    sandglass dashboards --prefix acme --out dashboards\n  \
    sandglass dashboards --prefix acme --out dashboards --force --json | jq -r '.files[].path'")]
pub(crate) struct Arguments {
    /// The prefix of the metrics' names: prefix under [metrics] of the daemon's configuration
    #[arg(long, value_name = "PREFIX", default_value_t = Prefix::default().to_string())]
    prefix: String,
    /// The folder to write to, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Overwrite files with other content
    #[arg(long)]
    force: bool,
    /// Print one JSON object {prefix, files: [{path, written}]}; a file that exists with the same
    /// content is not written
    #[arg(long)]
    json: bool,
}

/// A file to write.
struct Wanted {
    path: PathBuf,
    text: String,
    existing: Existing,
}

/// What exists at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    Same,
    Other,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let prefix = prefix(&arguments.prefix)?;
    let wanted = FILES.iter().map(|(name, text)| {
        let (path, text) =
            (arguments.out.join(name), rename_dashboard(rename_metrics(text, &prefix), &prefix));
        let existing =
            compare(&path, &text).with_context(|| format!("can't write `{}`", path.display()))?;
        Ok(Wanted { path, text, existing })
    });
    let wanted: Vec<Wanted> = wanted.collect::<anyhow::Result<_>>()?;
    // All files are compared before one is written.
    if let Some(other) =
        wanted.iter().find(|one| one.existing == Existing::Other && !arguments.force)
    {
        bail!(
            "`{}` exists with other content; name another folder with --out, or overwrite it with \
             --force",
            other.path.display()
        );
    }
    for Wanted { path, text, .. } in wanted.iter().filter(|one| one.existing != Existing::Same) {
        write(path, text).with_context(|| format!("can't write `{}`", path.display()))?;
    }
    print(&prefix, &wanted, arguments.json)?;
    Ok(Exit::Ok)
}

/// Parses the prefix. The `_` that follows it in names is not a part of it, but easily taken for one.
fn prefix(text: &str) -> anyhow::Result<Prefix> {
    let meant = text.trim_end_matches('_');
    match Prefix::new(text) {
        Ok(prefix) => Ok(prefix),
        Err(_) if meant != text && Prefix::new(meant).is_ok() => {
            bail!("--prefix: use `{meant}`; the `_` that follows it in names is not a part of it")
        }
        Err(error) => Err(error).context("--prefix"),
    }
}

fn print(prefix: &Prefix, wanted: &[Wanted], as_json: bool) -> anyhow::Result<()> {
    let output = Output::new();
    if as_json {
        let one = |one: &Wanted| {
            let path = one.path.display().to_string();
            json!({ "path": path, "written": one.existing != Existing::Same })
        };
        let files: Vec<_> = wanted.iter().map(one).collect();
        output.json(&json!({ "prefix": prefix.to_string(), "files": files }))?;
        return Ok(());
    }
    for Wanted { path, existing, .. } in wanted {
        let unchanged = if *existing == Existing::Same { "  (unchanged)" } else { "" };
        output.line(format_args!("{}{unchanged}", printable_path(path)))?;
    }
    Ok(())
}

/// Compares what exists at `path` with `text`.
fn compare(path: &Path, text: &str) -> io::Result<Existing> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A file of another length is not read, however large it is.
        Ok(found) if !found.is_file() || found.len() != text.len() as u64 => Ok(Existing::Other),
        Ok(_) if fs::read(path)? == text.as_bytes() => Ok(Existing::Same),
        Ok(_) => Ok(Existing::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Existing::Nothing),
        Err(error) => Err(error),
    }
}

/// Writes `text` to `path` atomically.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // A temporary file is otherwise readable by its owner alone; the umask decides.
    let permissions = fs::Permissions::from_mode(0o666);
    let mut builder = tempfile::Builder::new();
    let mut file = builder.prefix(".dashboards-").permissions(permissions).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|refused| refused.error)?;
    Ok(())
}

/// Replaces the prefix of metrics and of recorded rules in `text` by `prefix`. Only whole words are
/// names; a word that only starts like one stays.
fn rename_metrics(text: &str, prefix: &Prefix) -> String {
    let default = Prefix::default().to_string();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let (between, from) = rest.split_at(start);
        let end = from.find(|c| !is_word(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        out.push_str(between);
        match word.strip_prefix(&default).filter(|name| is_metric_suffix(name)) {
            Some(name) => out.extend([&prefix.to_string(), name]),
            None => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Gives the dashboard an id and a title of its own for another prefix, so that one Grafana can have
/// several.
fn rename_dashboard(text: String, prefix: &Prefix) -> String {
    if *prefix == Prefix::default() {
        return text;
    }
    let uid = format!("\"uid\": \"{UID}-{}\"", shorten(&prefix.to_string()));
    let title = format!("\"title\": \"{TITLE} ({prefix})\"");
    text.replace(&format!("\"uid\": \"{UID}\""), &uid)
        .replace(&format!("\"title\": \"{TITLE}\""), &title)
}

/// Shortens `prefix` to fit into an id after [`UID`]: a long one to its start and its hash (FNV-1a).
fn shorten(prefix: &str) -> String {
    let max = UID_MAX_CHARS - UID.len() - 1;
    if prefix.len() <= max {
        return prefix.to_owned();
    }
    let hash = prefix
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // Prefixes are ASCII.
    format!("{}{hash:08x}", &prefix[..max - 8])
}

/// Whether `rest` makes the prefix before it part of a metric's name: it is empty, as before the dot
/// of a name in Datadog, or the name of a metric.
fn is_metric_suffix(rest: &str) -> bool {
    let Some(name) = rest.strip_prefix('_') else { return rest.is_empty() };
    let is_metric = |row: &sandglass_telemetry::table::Definition| {
        // Rules leave the unit out of the names that they record.
        let short = ["_total", "_ratio"].iter().find_map(|unit| row.name.strip_suffix(unit));
        let suffix = name.strip_prefix(row.name);
        matches!(suffix, Some("" | "_bucket" | "_sum" | "_count")) || short == Some(name)
    };
    name.is_empty() || TABLE.iter().any(is_metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prefix_has_a_dashboard_of_its_own() {
        let grafana = FILES.iter().find(|(name, _)| name.starts_with("grafana/"));
        let (_, grafana) = grafana.expect("there is one");
        let named = |prefix: &str| {
            let text =
                rename_dashboard((*grafana).to_owned(), &Prefix::new(prefix).expect("valid"));
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let text = |key: &str| json[key].as_str().expect("text").to_owned();
            (text("uid"), text("title"))
        };
        assert_eq!(named("temper"), (UID.to_owned(), TITLE.to_owned()));
        assert_eq!(named("acme"), (format!("{UID}-acme"), format!("{TITLE} (acme)")));
        let long = ["a_prefix_that_is_long_1", "a_prefix_that_is_long_2"].map(|one| named(one).0);
        assert_ne!(long[0], long[1]);
        assert!(long.iter().all(|uid| uid.len() == UID_MAX_CHARS), "{long:?}");
    }

    #[test]
    fn a_prefix_with_an_underscore_is_corrected() {
        let message = prefix("temper_").expect_err("none").to_string();
        assert!(message.contains("use `temper`"), "{message}");
        for none in ["_", "", "Te_", "a b"] {
            assert!(
                !format!("{:#}", prefix(none).expect_err("none")).contains("use `"),
                "{none:?}"
            );
        }
    }

    #[test]
    fn metrics_are_renamed_and_other_words_stay() {
        let prefix = Prefix::new("acme").expect("valid");
        for (text, expected) in [
            ("temper_handler_kill_latency_ms_bucket{}", "acme_handler_kill_latency_ms_bucket{}"),
            (
                "x:temper_handler_budget_used:ratio_p99_1h",
                "x:acme_handler_budget_used:ratio_p99_1h",
            ),
            (
                "sum:temper.handler_kill_latency_ms.sum{*}",
                "sum:acme.handler_kill_latency_ms.sum{*}",
            ),
            ("raw_metric_prefix: temper_", "raw_metric_prefix: acme_"),
            ("namespace: temper", "namespace: acme"),
            (
                "temperature distemper temper_of_a_person",
                "temperature distemper temper_of_a_person",
            ),
            ("temper_handler_kill_latency_msx é", "temper_handler_kill_latency_msx é"),
        ] {
            assert_eq!(rename_metrics(text, &prefix), expected);
            assert_eq!(rename_metrics(text, &Prefix::default()), text);
        }
    }
}
