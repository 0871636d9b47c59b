//! `sandglass dashboards`: writes dashboards, monitors and rules for the names that a
//! host's metrics have.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_source::printable;
use sandglass_telemetry::Prefix;
use sandglass_telemetry::table::TABLE;
use serde_json::json;

use crate::exit::Exit;
use crate::terminal::Output;

/// The files of `dashboards/`, in the order of their names.
const FILES: [(&str, &str); 7] = [
    ("README.md", include_str!("../../../../dashboards/README.md")),
    (
        "datadog/handler-liveness-monitors.json",
        include_str!("../../../../dashboards/datadog/handler-liveness-monitors.json"),
    ),
    (
        "datadog/handler-liveness-overview.json",
        include_str!("../../../../dashboards/datadog/handler-liveness-overview.json"),
    ),
    ("datadog/openmetrics.yaml", include_str!("../../../../dashboards/datadog/openmetrics.yaml")),
    (
        "grafana/handler-liveness.json",
        include_str!("../../../../dashboards/grafana/handler-liveness.json"),
    ),
    ("prometheus/rules.test.yml", include_str!("../../../../dashboards/prometheus/rules.test.yml")),
    ("prometheus/rules.yml", include_str!("../../../../dashboards/prometheus/rules.yml")),
];

/// What Grafana knows its dashboard by, and how it is headed.
const UID: &str = "sandglass-handler-liveness";
const TITLE: &str = "Sandglass: Handler Liveness";
/// Longest such name that Grafana takes, in characters.
const UID_MAX_CHARS: usize = 40;

/// Writes dashboards, monitors and alerts, for the prefix that a host's metrics have
///
/// For Grafana, Prometheus and Datadog, and how to read them (README.md). A file that is
/// there already and is another is left alone, and nothing is written.
///
/// Exit code: 0, 2 the prefix or the folder can't be used.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass dashboards --out dashboards\n  \
    sandglass dashboards --prefix acme --out dashboards\n  \
    sandglass dashboards --prefix acme --out dashboards --force --json | jq -r '.files[].path'")]
pub(crate) struct Arguments {
    /// What the names of the metrics begin with: `prefix` under [metrics] of the daemon's
    /// configuration
    #[arg(long, value_name = "PREFIX", default_value_t = Prefix::default().to_string())]
    prefix: String,
    /// The folder to write to; it is made if there is none
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write over files that are others
    #[arg(long)]
    force: bool,
    /// Print one JSON object {prefix, files [{path, written}]}; one that was there already,
    /// as it is, isn't written
    #[arg(long)]
    json: bool,
}

/// A file that is asked for.
struct Wanted {
    path: PathBuf,
    text: String,
    there: There,
}

/// What stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    Same,
    Other,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let prefix = prefix(&arguments.prefix)?;
    let wanted = FILES.iter().map(|(name, text)| {
        let (path, text) = (arguments.out.join(name), named_apart(renamed(text, &prefix), &prefix));
        let there = what_is_at(&path, &text)
            .with_context(|| format!("`{}` can't be written", path.display()))?;
        Ok(Wanted { path, text, there })
    });
    let wanted: Vec<Wanted> = wanted.collect::<anyhow::Result<_>>()?;
    // All is looked at before anything is written.
    if let Some(other) = wanted.iter().find(|one| one.there == There::Other && !arguments.force) {
        bail!(
            "there is another `{}`; name another folder with --out, or write over it with --force",
            other.path.display()
        );
    }
    for Wanted { path, text, .. } in wanted.iter().filter(|one| one.there != There::Same) {
        write(path, text).with_context(|| format!("`{}` can't be written", path.display()))?;
    }
    tell(&prefix, &wanted, arguments.json)?;
    Ok(Exit::Ok)
}

/// # Errors
/// It is none. Names have a `_` behind it, which people take for a part of it.
fn prefix(text: &str) -> anyhow::Result<Prefix> {
    let meant = text.trim_end_matches('_');
    match Prefix::new(text) {
        Ok(prefix) => Ok(prefix),
        Err(_) if meant != text && Prefix::new(meant).is_ok() => {
            bail!("--prefix: say `{meant}`; the `_` that follows it in names isn't a part of it")
        }
        Err(error) => Err(error).context("--prefix"),
    }
}

fn tell(prefix: &Prefix, wanted: &[Wanted], as_json: bool) -> anyhow::Result<()> {
    let mut output = Output::new();
    if as_json {
        let one = |one: &Wanted| {
            let path = one.path.display().to_string();
            json!({ "path": path, "written": one.there != There::Same })
        };
        let files: Vec<_> = wanted.iter().map(one).collect();
        output.json(&json!({ "prefix": prefix.to_string(), "files": files }))?;
        return Ok(());
    }
    for Wanted { path, there, .. } in wanted {
        let as_before = if *there == There::Same { "  (as it was)" } else { "" };
        output.line(format_args!("{}{as_before}", printable(&path.display().to_string())))?;
    }
    Ok(())
}

/// What stands at `path`, where `text` is to stand.
fn what_is_at(path: &Path, text: &str) -> io::Result<There> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A file of another length need not be read, however long it is.
        Ok(found) if !found.is_file() || found.len() != text.len() as u64 => Ok(There::Other),
        Ok(_) if fs::read(path)? == text.as_bytes() => Ok(There::Same),
        Ok(_) => Ok(There::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(There::Nothing),
        Err(error) => Err(error),
    }
}

/// Puts `text` at `path`: whole, or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut beside = tempfile::Builder::new();
    readable_as_any_new_file(&mut beside);
    let mut file = beside.prefix(".dashboards-").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|refused| refused.error)?;
    Ok(())
}

/// The umask takes from it; without this, a temporary file is its maker's alone.
#[cfg(unix)]
fn readable_as_any_new_file(file: &mut tempfile::Builder<'_, '_>) {
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
}

#[cfg(not(unix))]
fn readable_as_any_new_file(_: &mut tempfile::Builder<'_, '_>) {}

/// `text` with the names of metrics, and of what rules record of them, under `prefix`. They
/// are whole words: what only begins like one stays.
fn renamed(text: &str, prefix: &Prefix) -> String {
    let default = Prefix::default().to_string();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let (between, from) = rest.split_at(start);
        let end = from.find(|c| !is_word(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        out.push_str(between);
        match word.strip_prefix(&default).filter(|name| follows_a_prefix(name)) {
            Some(name) => out.extend([&prefix.to_string(), name]),
            None => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `text` with the names of Grafana's dashboard made others for another prefix, so that
/// several stand in one Grafana.
fn named_apart(text: String, prefix: &Prefix) -> String {
    if *prefix == Prefix::default() {
        return text;
    }
    let uid = format!("\"uid\": \"{UID}-{}\"", short(&prefix.to_string()));
    let title = format!("\"title\": \"{TITLE} ({prefix})\"");
    text.replace(&format!("\"uid\": \"{UID}\""), &uid)
        .replace(&format!("\"title\": \"{TITLE}\""), &title)
}

/// `prefix` in as many characters as there is room for behind [`UID`]: a long one by its
/// begin and its hash (FNV-1a).
fn short(prefix: &str) -> String {
    let room = UID_MAX_CHARS - UID.len() - 1;
    if prefix.len() <= room {
        return prefix.to_owned();
    }
    let hash = prefix
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // It is ASCII, as prefixes are.
    format!("{}{hash:08x}", &prefix[..room - 8])
}

/// Whether `rest` is what follows the prefix where that is meant: nothing, as before the
/// point of a name in Datadog, or the name of a metric.
fn follows_a_prefix(rest: &str) -> bool {
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
            let text = named_apart((*grafana).to_owned(), &Prefix::new(prefix).expect("valid"));
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
    fn a_prefix_with_its_line_is_told_how_to_be_said() {
        let said = prefix("temper_").expect_err("none").to_string();
        assert!(said.contains("say `temper`"), "{said}");
        for none in ["_", "", "Te_", "a b"] {
            assert!(!format!("{:#}", prefix(none).expect_err("none")).contains("say"), "{none:?}");
        }
    }

    #[test]
    fn names_of_metrics_are_renamed_and_other_words_stay() {
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
            assert_eq!(renamed(text, &prefix), expected);
            assert_eq!(renamed(text, &Prefix::default()), text);
        }
    }
}
