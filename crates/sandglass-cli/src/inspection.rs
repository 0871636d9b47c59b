//! Formats the report of `sandglass inspect` for people.

use std::path::Path;

use sandglass_host::inspection::{
    Export, Grant, Granted, Import, Inspection, LargeFunction, Memory, Permissions, Provider,
    Table, WasiUse,
};
use sandglass_host::{Abi, OnDenied};
use sandglass_model::{GuestLimits, Rejection};
use sandglass_source::{printable, shortened};
use serde::Serialize;

use crate::duration::format_millis_exactly;
use crate::explain;
use crate::handler_text::labeled;
use crate::terminal::{Output, Tone, count, printable_path};

/// Most imports, exports and the like that are listed; `--json` has all of them.
const LIST_MAX: usize = 60;

/// Most characters of a type; `--json` has all of them.
const TYPE_MAX_CHARS: usize = 100;

/// Most custom sections that are listed, the largest first.
const SECTIONS_MAX: usize = 6;

/// A guest, and what its manifest permits.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) guest: Inspection,
    /// The path of the manifest, if there is one.
    pub(crate) manifest: Option<String>,
    /// What the manifest permits.
    pub(crate) permissions: Option<Permissions>,
    /// Why the host would not run it; `None` if it would.
    pub(crate) rejection: Option<Rejection>,
}

/// Formats the report on the guest at `path`.
pub(crate) fn lines(path: &Path, report: &Report, output: &Output) -> Vec<String> {
    let Report { guest, manifest, permissions, rejection } = report;
    let mut lines = vec![headline(path, guest, output)];
    let mut add = |details: Vec<(&'static str, String)>| {
        lines.extend(details.iter().map(|(label, value)| output.detail(12, label, value)));
    };
    add(of_guest(guest));
    let granted = permissions.as_ref().map(|permissions| &permissions.granted);
    if guest.abi == Abi::NodePack {
        add(vec![("nodes", NODES.to_owned())]);
    }
    add(labeled("memory", memories(guest, granted)).collect());
    add(labeled("tables", guest.tables.iter().map(|one| table(one, granted))).collect());
    add(labeled("exports", exports(guest)).collect());
    add(labeled("imports", imports(guest, permissions.as_ref())).collect());
    add(labeled("wasi", wasi(guest)).collect());
    match (manifest, permissions) {
        (Some(path), Some(permissions)) => {
            let of = format!("{} ({})", permissions.integration, path);
            add(vec![("manifest", printable(&of).into_owned())]);
            add(may(permissions));
        }
        _ => add(vec![("manifest", NO_MANIFEST.to_owned())]),
    }
    add(verdict(rejection.as_ref(), output));
    lines
}

const NO_MANIFEST: &str = "none beside it names it, so it has only the permissions that \
                           every guest has";

const NODES: &str = "known only when it runs, from its exports";

fn headline(path: &Path, guest: &Inspection, output: &Output) -> String {
    let form = if guest.is_text { ", as text" } else { "" };
    let modules = match guest.modules {
        1 => String::new(),
        modules => format!(" of {modules} core modules"),
    };
    let what = format!("{}{modules} ({}){form}", guest.abi, guest.contract);
    format!("{}: {what}", output.paint(Tone::Strong, printable_path(path)))
}

fn of_guest(guest: &Inspection) -> Vec<(&'static str, String)> {
    let size = &guest.size;
    let mut details = vec![
        ("sha256", guest.sha256.to_string()),
        (
            "size",
            format!(
                "{}: code {}, data {}, custom sections {}",
                bytes(size.total),
                bytes(size.code),
                bytes(size.data),
                bytes(size.custom)
            ),
        ),
    ];
    let sections = size.custom_sections.iter().take(SECTIONS_MAX);
    let sections: Vec<_> = sections
        .map(|section| format!("{} {}", printable(&section.name), bytes(section.bytes)))
        .collect();
    if !sections.is_empty() {
        let more = size.custom_sections.len().saturating_sub(SECTIONS_MAX);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        details.push(("", format!("{}{more}", sections.join(", "))));
    }
    details.push(("functions", format!("{} of its own", guest.functions)));
    details.extend(labeled(
        "largest",
        guest.largest_functions.iter().take(5).map(|one| large(one, guest)),
    ));
    let made = guest.producers.iter().map(|one| {
        printable(&format!("{}: {} {}", one.field, one.name, one.version)).trim_end().to_owned()
    });
    details.extend(labeled("made by", made.take(LIST_MAX)));
    let names = if guest.debug.function_names { "function names" } else { "no function names" };
    let lines = match (guest.debug.lines, guest.debug.source_map) {
        (true, _) => "files and lines (DWARF)",
        (false, true) => "no files and lines (a source map is not read)",
        (false, false) => "no files and lines",
    };
    details.push(("debug", format!("{names}, {lines}")));
    if guest.runs_at_start {
        details.push(("start", "runs code before its handler, within its budget".to_owned()));
    }
    details
}

fn large(function: &LargeFunction, guest: &Inspection) -> String {
    let name = function.name.as_deref().map(|name| shortened(name, TYPE_MAX_CHARS));
    let name = name.unwrap_or_else(|| format!("function {}", function.index).into());
    let within =
        if guest.modules > 1 { format!(" (module {})", function.module) } else { String::new() };
    format!("{:>9}  {}{within}", bytes(function.bytes), printable(&name))
}

fn memories(guest: &Inspection, granted: Option<&Granted>) -> Vec<String> {
    let may = granted.map_or(GuestLimits::default().memory_bytes, |granted| granted.memory_bytes);
    let line = |memory: &Memory| {
        let starts = format!("starts with {}", bytes(memory.initial_bytes));
        let grows = match memory.maximum_bytes {
            Some(most) => format!(", never grows beyond {}", bytes(most)),
            None => ", declares no maximum".to_owned(),
        };
        let not_run = match memory {
            Memory { is_shared: true, .. } => "; shared, which this host does not support",
            Memory { is_64_bit: true, .. } => "; 64-bit, which this host does not support",
            Memory { is_imported: true, .. } => "; imported, which this host does not support",
            _ => "",
        };
        format!("{starts}{grows}{not_run}")
    };
    let granted = format!("limit for all: {}", bytes(may));
    guest.memories.iter().map(line).chain([granted]).collect()
}

fn table(table: &Table, granted: Option<&Granted>) -> String {
    let may = granted.map_or(GuestLimits::default().table_elements, |one| one.table_elements);
    let grows = match table.maximum_elements {
        Some(most) => format!(", never grows beyond {most}"),
        None => String::new(),
    };
    let starts = count(table.initial_elements, "element");
    format!("starts with {starts}{grows}; its limit is {may}")
}

fn exports(guest: &Inspection) -> Vec<String> {
    let mut lines: Vec<String> = guest
        .missing_exports
        .iter()
        .map(|missing| {
            let near =
                missing.nearest.as_ref().map(|near| format!("; it exports `{}`", printable(near)));
            let ty = shortened(&missing.signature, TYPE_MAX_CHARS);
            format!("MISSING  {}  {ty}{}", missing.name, near.unwrap_or_default())
        })
        .collect();
    let line = |export: &Export| {
        let ty = shortened(&export.signature, TYPE_MAX_CHARS);
        let (name, ty) = (printable(&export.name), printable(&ty));
        match &export.expected_signature {
            Some(wanted) => {
                format!("WRONG    {name}  {ty}; it must be {}", shortened(wanted, TYPE_MAX_CHARS))
            }
            None if export.is_used => format!("used     {name}  {ty}"),
            None => format!("unused   {name}  {ty}"),
        }
    };
    // Used exports first.
    let mut exports: Vec<&Export> = guest.exports.iter().collect();
    exports.sort_by_key(|export| !export.is_used);
    lines.extend(list_lines(&exports, guest.exports_omitted, line));
    lines
}

fn imports(guest: &Inspection, permissions: Option<&Permissions>) -> Vec<String> {
    if guest.imports.is_empty() {
        return vec!["nothing".to_owned()];
    }
    let not_granted = permissions.map(|permissions| &permissions.not_granted);
    let line = |import: &Import| {
        let spelled = format!("{}.{}", import.module, import.name);
        let name = printable(import.host_function.unwrap_or(&spelled)).into_owned();
        let ty = shortened(&import.signature, TYPE_MAX_CHARS);
        let ty = printable(&ty);
        if !import.is_known {
            let instead = match (&import.nearest, import.other_version) {
                (_, Some(here)) => format!("; this host has {here}"),
                (Some(near), None) => format!("; did you mean `{near}`?"),
                (None, None) => "; an embedder must provide it".to_owned(),
            };
            return format!("UNKNOWN  {name}  {ty}{instead}");
        }
        if let Some(wanted) = &import.expected_signature {
            return format!("WRONG    {name}  {ty}; this host has {wanted}");
        }
        let waits = if import.waits { ", can wait" } else { "" };
        let needs = import.needs.as_ref().map(|grant| {
            let is_granted =
                not_granted.is_some_and(|all| all.iter().all(|one| one.grant != *grant));
            let how = if is_granted { "granted by" } else { "needs" };
            format!(", {how} {}", key(grant))
        });
        format!(
            "{:<8} {name}{waits}{}",
            import.group.unwrap_or_default(),
            needs.unwrap_or_default()
        )
    };
    // Unusable imports first.
    let mut imports: Vec<&Import> = guest.imports.iter().collect();
    imports.sort_by_key(|one| one.is_known && one.expected_signature.is_none());
    let mut lines: Vec<String> = list_lines(&imports, guest.imports_omitted, line).collect();
    if guest.imports.iter().any(|import| import.provider != Provider::BuiltIn) {
        lines.insert(0, providers(&guest.imports));
    }
    lines
}

/// How many imports are built in, and how many an embedder provides or must provide.
fn providers(imports: &[Import]) -> String {
    let by = |provider| imports.iter().filter(|import| import.provider == provider).count();
    let mut line = format!("{} built in", by(Provider::BuiltIn));
    for (provider, what) in [
        (Provider::Embedder, "provided by the embedder of this host"),
        (Provider::Missing, "that an embedder must provide, unless they are misspelled"),
    ] {
        let found = by(provider);
        if found > 0 {
            line += &format!(", {found} {what}");
        }
    }
    line
}

fn key(grant: &Grant) -> String {
    match grant {
        Grant::Function(name) => format!("`functions` (`{}`)", printable(name)),
        other => format!("`{}`", other.key()),
    }
}

/// The lines of the first of `all`, and one line about the others and those that were `omitted`.
fn list_lines<T>(
    all: &[&T],
    omitted: u64,
    line: impl Fn(&T) -> String,
) -> impl Iterator<Item = String> {
    let more = (all.len().saturating_sub(LIST_MAX) as u64).saturating_add(omitted);
    let more = (more > 0).then(|| format!("and {more} more; --json has them"));
    all.iter().take(LIST_MAX).map(move |one| line(one)).chain(more)
}

/// The versions of WASI that the guest needs, and what it imports of them.
fn wasi(guest: &Inspection) -> impl Iterator<Item = String> {
    let versions = guest.wasi_versions.join(" and ");
    let needs =
        (!versions.is_empty()).then(|| printable(&format!("needs WASI {versions}")).into_owned());
    needs.into_iter().chain(guest.wasi.iter().map(of_interface))
}

fn of_interface(wasi: &WasiUse) -> String {
    let functions = count(wasi.functions, "function");
    let refused = match wasi.refused.len() {
        0 => String::new(),
        _ => {
            let names = shortened(&wasi.refused.join(", "), TYPE_MAX_CHARS).into_owned();
            format!("; refused, because there are no files and no sockets: {names}")
        }
    };
    let interface = &wasi.interface;
    printable(&format!("{interface}: {functions}{refused}")).into_owned()
}

/// Permissions that it has, that it lacks, and that it does not need.
fn may(permissions: &Permissions) -> Vec<(&'static str, String)> {
    let Permissions { granted, not_granted, unused, .. } = permissions;
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => printable(&shortened(&names.join(", "), 400)).into_owned(),
    };
    let mut may = vec![
        format!("hosts: {}", list(&granted.hosts)),
        format!("secrets: {}", list(&granted.secrets)),
        format!("ask: {}", list(&granted.ask)),
        format!("signal: {}", list(&granted.signal)),
        format!("functions of the embedder: {}", list(&granted.functions)),
        match granted.scratch_bytes {
            0 => "scratch: none".to_owned(),
            scratch => format!("scratch: {}", bytes(scratch)),
        },
        format!("responses and result: {}", bytes(granted.response_bytes)),
        format!("memory of the host for it: {}", bytes(granted.host_memory_bytes)),
        match granted.soft_deadline_ms {
            Some(before) => {
                format!("warning {} before its deadline", format_millis_exactly(before))
            }
            None => "no warning before its deadline".to_owned(),
        },
    ];
    may.push(match granted.on_denied {
        OnDenied::Fail => "a refused call that it ignores: it fails".to_owned(),
        OnDenied::Report => "a refused call that it ignores: reported".to_owned(),
    });
    let timeouts = &granted.host_call_timeouts_ms;
    may.extend(timeouts.iter().take(LIST_MAX).map(|(name, limit)| {
        format!("a call of {} takes at most {}", printable(name), format_millis_exactly(*limit))
    }));
    may.extend(granted.fuel.map(|fuel| format!("fuel: {fuel}")));
    may.extend(granted.max_in_flight.map(|most| format!("at most {most} handlers at once")));
    may.extend(granted.max_queued.map(|most| format!("at most {most} waiting handlers")));
    let lacks = not_granted.iter().map(|one| {
        let imports = list(&one.imports);
        format!("{} for {imports}", key(&one.grant))
    });
    let idle =
        unused.iter().map(|one| printable(&format!("`{}`: {}", one.key, one.what)).into_owned());
    let mut details: Vec<_> = labeled("may", may).collect();
    details.extend(labeled("not granted", lacks));
    details.extend(labeled("not used", idle));
    details
}

fn verdict(rejection: Option<&Rejection>, output: &Output) -> Vec<(&'static str, String)> {
    match rejection {
        None => vec![("verdict", output.paint(Tone::Good, "this host runs it"))],
        Some(Rejection { kind, message }) => vec![
            (
                "verdict",
                format!("{} ({kind}): {}", output.paint(Tone::Bad, "rejected"), printable(message)),
            ),
            ("explain", explain::command(kind.as_str())),
        ],
    }
}

/// Formats a size for people.
fn bytes(count: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let size = count as f64;
    match count {
        0..10_240 => format!("{count} B"),
        10_240..1_048_576 => format!("{:.1} KiB", size / 1024.0),
        _ => format!("{:.1} MiB", size / (1024.0 * 1024.0)),
    }
}
