//! Parses the text of `integration.toml`, and reports all errors at once. It opens no file;
//! [`super::folder`] does.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::path::{Component, Path};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_model::{GuestLimits, ModuleHash};
use sandglass_source::{
    Diagnostic, Diagnostics, Document, Name, Table, did_you_mean, items_of, not_text, valid_name,
};

use super::{Abi, AskTarget, Manifest, OnDenied, SPANS_MAX};
use crate::capability::http::{Destination, Scheme};
use crate::run::Phase;
use crate::secret::{GrantedSecrets, Secrets};
use crate::settings::MAX_TABLE_ELEMENTS;

/// Largest manifest, in bytes: a thousand times what people write.
pub const SOURCE_MAX_BYTES: usize = 1 << 20;

/// Most entries of one list of a manifest: more than a person can review.
pub const ENTRIES_MAX: usize = 1_000;

/// The dying spans that are no host calls.
const OWN_SPANS: [&str; 2] = [Phase::Instantiating.own_span(), Phase::Running.own_span()];

/// Most memory that a manifest can grant: what 32-bit addresses reach. A host may allow less.
const MEMORY_MAX_BYTES: u64 = 4 << 30;
/// Largest response, and most scratch: each is in memory as a whole.
const HELD_MAX_BYTES: u64 = 256 << 20;
/// Largest file of a module: twice those of toolchains with an interpreter.
const MODULE_MAX_BYTES: u64 = 64 << 20;
/// Most handlers of one integration in flight, and in its queue: more than any host's.
const HANDLERS_MAX: u64 = 1_000_000;

/// The result of parsing a manifest.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The manifest; `None` if there is an error.
    pub file: Option<File>,
    /// Errors and warnings, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
}

/// A manifest as it is written: its module, and what that is granted.
#[derive(Clone, Debug)]
pub struct File {
    name: Name,
    /// The module's file, relative to the manifest's folder and inside it.
    pub module: Name,
    /// The names of granted secrets. Their values come from the embedder.
    pub secrets: Vec<Name>,
    /// The host functions with a timeout of their own, with their places in the file.
    pub timed_functions: Vec<Name>,
    /// The contract of its module.
    pub abi: Abi,
    /// The place of `abi` in the file.
    pub abi_span: Range<usize>,
    /// The place of `sha256` in the file, if it is there.
    pub sha256_span: Option<Range<usize>>,
    soft_deadline_span: Range<usize>,
    /// The grants, without values of secrets.
    pub granted: Manifest,
}

impl File {
    /// Parses a manifest, and reports all errors at once.
    #[must_use]
    pub fn parse(source: &str) -> Parsed {
        let mut out = Diagnostics::new(source);
        let file = read(source, &mut out).filter(|_| !out.has_errors());
        Parsed { file, diagnostics: out.finish() }
    }

    /// Parses a manifest that may not be text.
    #[must_use]
    pub fn parse_bytes(source: &[u8]) -> Parsed {
        match str::from_utf8(source) {
            Ok(text) => Self::parse(text),
            Err(_) => Parsed { file: None, diagnostics: not_text(source, "a manifest") },
        }
    }

    /// The place of the name in the file.
    #[must_use]
    pub fn name_span(&self) -> &Range<usize> {
        self.name.span()
    }

    /// The name of the integration, by which specs refer to it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long before its deadline a handler is warned, and the place of that in the file.
    #[must_use]
    pub fn soft_deadline(&self) -> Option<(Duration, &Range<usize>)> {
        self.granted.soft_deadline.map(|before| (before, &self.soft_deadline_span))
    }

    /// The grants, with the named secrets taken from `secrets`. Other secrets are never requested.
    #[must_use]
    pub fn manifest(&self, secrets: Arc<dyn Secrets>) -> Manifest {
        let names: BTreeSet<String> = self.secrets.iter().map(ToString::to_string).collect();
        self.granted.clone().secrets(Arc::new(GrantedSecrets::new(names, secrets)))
    }
}

fn read(source: &str, out: &mut Diagnostics<'_>) -> Option<File> {
    const KEYS: [&str; 9] = [
        "name",
        "module",
        "sha256",
        "abi",
        "soft_deadline",
        "on_denied",
        "spans",
        "limits",
        "grants",
    ];
    let document = Document::parse(source, SOURCE_MAX_BYTES, out)?;
    let top = document.table("the manifest");
    top.only(&KEYS, out);
    let name = top.required_name("name", out);
    let module = module(&top, out);
    let sha256 = sha256(&top, out);
    let abi = abi(&top, out);
    let mut granted = Manifest::named(name.as_ref().map(Name::as_str).unwrap_or_default());
    // The config of an integration may set what the file leaves open.
    granted.max_memory_bytes = Some(MEMORY_MAX_BYTES);
    granted.max_response_bytes = Some(HELD_MAX_BYTES);
    granted.soft_deadline = top.duration("soft_deadline", out).map(Duration::from_millis);
    granted.on_denied = on_denied(&top, out);
    granted = granted.spans(spans(&top, out));
    let mut timed_functions = Vec::new();
    if let Some(table) = top.table("limits", "[limits]", out) {
        granted = limits(&table, granted, abi, out);
        let timeouts = host_call_timeouts(&table, out);
        timed_functions = timeouts.iter().map(|(name, _)| name.clone()).collect();
        let timeouts = timeouts.into_iter().map(|(name, time)| (name.to_string(), time));
        granted = granted.host_call_timeouts(timeouts);
    }
    let mut secrets = Vec::new();
    if let Some(table) = top.table("grants", "[grants]", out) {
        granted = grants(&table, granted, out);
        secrets = list(&table, "secrets", out, |_| Ok::<_, String>(()))
            .into_iter()
            .map(|(name, ())| name)
            .collect();
    }
    granted.module_hash = sha256;
    let abi = abi?;
    granted.abi = Some(abi);
    Some(File {
        name: name?,
        abi,
        module: module?,
        secrets,
        timed_functions,
        abi_span: top.span_of("abi"),
        sha256_span: sha256.map(|_| top.span_of("sha256")),
        soft_deadline_span: top.span_of("soft_deadline"),
        granted,
    })
}

/// The module's path, which stays inside the manifest's folder.
fn module(top: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Name> {
    let module = top.required_name("module", out)?;
    let inside = Path::new(module.as_str())
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    // A path that is absolute on another system is rejected here as well.
    if inside && !module.contains(['\\', ':']) {
        return Some(module);
    }
    let help = "name a file beside the manifest, or in a folder below it";
    let message = format!("the module `{module}` is outside of the manifest's folder");
    out.error_with_help(module.span(), message, help);
    None
}

fn sha256(top: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<ModuleHash> {
    let text = top.text("sha256", out)?;
    let help = "write the 64 digits that `sha256sum MODULE` prints";
    let hash = text.parse().map_err(|_| "`sha256` is no hash in hexadecimal");
    hash.map_err(|message| out.error_with_help(text.span(), message, help)).ok()
}

fn abi(top: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Abi> {
    top.require("abi", out);
    let text = top.text("abi", out)?;
    let abi = Abi::named(&text);
    if abi.is_none() {
        let message = format!("no ABI is called `{text}`");
        out.error_with_help(text.span(), message, did_you_mean(&text, Abi::NAMES));
    }
    abi
}

fn on_denied(top: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<OnDenied> {
    let text = top.text("on_denied", out)?;
    let on_denied = OnDenied::named(&text);
    if on_denied.is_none() {
        let help = "write \"fail\" or \"report\"";
        out.error_with_help(text.span(), format!("unknown `on_denied`: `{text}`"), help);
    }
    on_denied
}

fn limits(
    table: &Table<'_, '_>,
    granted: Manifest,
    abi: Option<Abi>,
    out: &mut Diagnostics<'_>,
) -> Manifest {
    const KEYS: [&str; 9] = [
        "memory",
        "host_memory",
        "table_elements",
        "fuel",
        "response",
        "module_size",
        "max_in_flight",
        "max_queued",
        "host_call_timeouts",
    ];
    table.only(&KEYS, out);
    let defaults = GuestLimits::default();
    let module_size = size(table, "module_size", MODULE_MAX_BYTES, out);
    let is_component = abi == Some(Abi::Component);
    let component = module_size.filter(|_| is_component);
    let core = module_size.filter(|_| !is_component && abi.is_some());
    let memory = size(table, "memory", MEMORY_MAX_BYTES, out);
    let response = size(table, "response", HELD_MAX_BYTES, out);
    let limits = GuestLimits {
        memory_bytes: memory.unwrap_or(defaults.memory_bytes),
        table_elements: table
            .count("table_elements", 0..=u64::from(MAX_TABLE_ELEMENTS), out)
            .unwrap_or(defaults.table_elements),
        fuel: table.count("fuel", 1..=u64::MAX, out),
        response_bytes: response.unwrap_or(defaults.response_bytes),
        host_memory_bytes: size(table, "host_memory", HELD_MAX_BYTES, out),
        module_bytes: core.unwrap_or(defaults.module_bytes),
        component_bytes: component.unwrap_or(defaults.component_bytes),
    };
    let handlers = |key, least, out: &mut Diagnostics<'_>| {
        table.count(key, least..=HANDLERS_MAX, out).and_then(|count| count.try_into().ok())
    };
    let (max_in_flight, max_queued) =
        (handlers("max_in_flight", 1, out), handlers("max_queued", 0, out));
    Manifest {
        limits,
        max_memory_bytes: memory.or(granted.max_memory_bytes),
        max_response_bytes: response.or(granted.max_response_bytes),
        max_in_flight,
        max_queued,
        ..granted
    }
}

/// The names of spans that dying spans may have.
fn spans(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<String> {
    let names = table.names("spans", out);
    if let Some(name) = names.get(SPANS_MAX) {
        let message = format!("`spans` may have {SPANS_MAX} names at most");
        let help = "each is a value of a label: declare the dependencies that can hang";
        out.error_with_help(name.span(), message, help);
    }
    if let Some(name) = names.iter().find(|name| OWN_SPANS.contains(&name.as_str())) {
        let message = format!("`{name}` is the dying span of the guest's own code");
        out.error_with_help(name.span(), message, "name the span after what it waits for");
    }
    names.iter().map(Name::to_string).collect()
}

fn size(table: &Table<'_, '_>, key: &str, most: u64, out: &mut Diagnostics<'_>) -> Option<u64> {
    let size = table.size(key, out)?;
    if size > most {
        let span = table.value(key).map_or_else(|| table.span.clone(), |value| value.span());
        out.error(&span, format!("`{key}` in {} may be {} MiB at most", table.label, most >> 20));
        return None;
    }
    Some(size)
}

fn host_call_timeouts(limits: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<(Name, Duration)> {
    const KEY: &str = "host_call_timeouts";
    const RANGE: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_millis(MAX_BUDGET_MS);
    let Some(table) = limits.table(KEY, "[limits.host_call_timeouts]", out) else {
        return Vec::new();
    };
    let mut timeouts = Vec::new();
    for (key, span, _) in table.entries() {
        if timeouts.len() == ENTRIES_MAX {
            out.error(&span, too_many(KEY));
            break;
        }
        let name = valid_name(Name::new(key, span), out);
        timeouts.extend(name.zip(table.duration_within(key, RANGE, out)));
    }
    timeouts
}

fn grants(table: &Table<'_, '_>, granted: Manifest, out: &mut Diagnostics<'_>) -> Manifest {
    table.only(&["hosts", "host", "secrets", "scratch", "ask", "signal", "functions"], out);
    let hosts = list(table, "hosts", out, Destination::from_str);
    let asks = list(table, "ask", out, AskTarget::from_str);
    let signals = list(table, "signal", out, AskTarget::from_str);
    let functions = list(table, "functions", out, function);
    let scratch = match table.value("scratch").map(|value| value.get_ref().as_integer()) {
        // The default, written explicitly.
        Some(Some(zero)) if zero.as_str() == "0" => 0,
        _ => size(table, "scratch", HELD_MAX_BYTES, out).unwrap_or(0),
    };
    let bounded = bounded_hosts(table, &hosts, out);
    granted
        .allow_hosts(hosts.into_iter().map(|(_, host)| host))
        .allow_more_hosts(bounded)
        .ask_targets(asks.into_iter().map(|(_, target)| target))
        .signal_targets(signals.into_iter().map(|(_, target)| target))
        .functions(functions.into_iter().map(|(_, function)| function))
        .scratch_bytes(scratch)
}

/// The entries of `[[grants.host]]`. A host that `hosts` grants too would have no bounds, which its
/// author cannot have intended.
fn bounded_hosts(
    table: &Table<'_, '_>,
    hosts: &[(Name, Destination)],
    out: &mut Diagnostics<'_>,
) -> Vec<Destination> {
    if let Some(value) = table.value("host")
        && let items = items_of(value)
        && !items.is_empty()
        && items.iter().all(|item| item.get_ref().is_str())
    {
        let found = if value.get_ref().is_array() { "an array of strings" } else { "a string" };
        let message = format!("`host` in [grants] must be an array of tables, and is {found}");
        let help = "did you mean `hosts`? An entry of `host` is a table: [[grants.host]]";
        out.error_with_help(&table.span_of("host"), message, help);
        return Vec::new();
    }
    let tables = table.tables("host", |number| format!("[[grants.host]] {number}"), out);
    if tables.len() > ENTRIES_MAX {
        out.error(&table.span, too_many("host"));
        return Vec::new();
    }
    let mut bounded: Vec<Destination> = Vec::new();
    for table in tables {
        let Some(destination) = bounded_host(&table, out) else { continue };
        if hosts.iter().any(|(_, host)| host.is_same_host(&destination)) {
            let message = "this host is also in `hosts`, which grants it without bounds";
            out.error_with_help(&table.span, message.to_owned(), "remove it from `hosts`");
        } else if bounded.contains(&destination) {
            out.error(&table.span, "this host is granted more than once".to_owned());
        }
        bounded.push(destination);
    }
    bounded
}

/// A host, with the restrictions to a scheme, a path and a kind of addresses.
fn bounded_host(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Destination> {
    table.only(&["host", "scheme", "path", "private", "port", "name"], out);
    if table.value("port").is_some() {
        let help = "write it with the host: `host = \"NAME:PORT\"`";
        out.error_with_help(
            &table.span,
            "`port` is not a key of `[[grants.host]]`".to_owned(),
            help,
        );
    }
    let host = table.required_text("host", out);
    let scheme = table.text("scheme", out);
    let path = table.text("path", out);
    let is_private = table.flag("private", out).unwrap_or(false);
    let name = table.name("name", out);
    let host = host?;
    let mut destination = match Destination::from_str(&host) {
        Ok(destination) => destination,
        Err(error) => {
            out.error(host.span(), error.to_string());
            return None;
        }
    };
    if let Some(scheme) = scheme {
        match Scheme::named(&scheme) {
            Some(scheme) => destination = destination.scheme(scheme),
            None => {
                let help = did_you_mean(&scheme, ["https", "http"]);
                out.error_with_help(scheme.span(), format!("unknown scheme `{scheme}`"), help);
            }
        }
    }
    if let Some(path) = path {
        if is_path(&path) {
            destination = destination.path(&path);
        } else {
            let message = format!("`{path}` is not a path");
            let help = "write it as `/v1`, without escapes, a query or `..`";
            out.error_with_help(path.span(), message, help);
        }
    }
    if let Some(name) = name {
        destination = destination.named(name.as_str());
    }
    Some(if is_private { destination.private() } else { destination })
}

/// Whether a URL can contain `path` without escapes.
fn is_path(path: &str) -> bool {
    const ESCAPED: &[u8] = b"?#%\\\"<>`{}^|";
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && !ESCAPED.contains(&byte))
        && !path.split('/').any(|segment| segment.starts_with(".."))
}

/// Reads a list of distinct texts, each of which `read` parses.
fn list<T, E: ToString>(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<(Name, T)> {
    let mut found: Vec<(Name, T)> = Vec::new();
    let mut seen = BTreeSet::new();
    for text in table.names(key, out) {
        if seen.len() == ENTRIES_MAX {
            out.error(text.span(), too_many(key));
            break;
        }
        if !seen.insert(text.to_string()) {
            let message = format!("`{text}` is in `{key}` twice");
            out.error_with_help(text.span(), message, "remove one of them");
            continue;
        }
        match read(&text) {
            Ok(value) => found.push((text, value)),
            Err(error) => out.error(text.span(), error.to_string()),
        }
    }
    found
}

fn too_many(key: &str) -> String {
    format!("`{key}` may have {ENTRIES_MAX} entries at most")
}

/// Parses a host function of the embedder, as `interface.name`.
fn function(text: &str) -> Result<String, String> {
    match text.rsplit_once('.') {
        Some((interface, name)) if !interface.is_empty() && !name.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("`{text}` names no host function: write INTERFACE.NAME")),
    }
}
