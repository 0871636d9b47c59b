//! The sections of a scenario file: its title, time, specs, modules and servers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sandglass_host::Destination;
use sandglass_source::{Diagnostics, Document, Table};

use super::{Module, SOURCE_MAX_BYTES, Server, Step, Time, step, value};

/// Most steps of a scenario, whose timeline people read.
const STEPS_MAX: usize = 1_000;
/// Most servers of a scenario: each holds a port.
const SERVERS_MAX: usize = 32;

/// What a scenario file contains, before its specs and modules are searched for.
#[derive(Debug, Default)]
pub(super) struct ParsedScenario {
    pub(super) title: Option<String>,
    pub(super) time: Time,
    pub(super) specs: Option<Vec<String>>,
    pub(super) modules: Vec<Module>,
    pub(super) servers: Vec<Server>,
    pub(super) steps: Vec<Step>,
}

/// Reads the text of a scenario file in `folder`.
pub(super) fn read(source: &str, folder: &Path, out: &mut Diagnostics<'_>) -> ParsedScenario {
    let Some(document) = Document::parse(source, SOURCE_MAX_BYTES, out) else {
        return ParsedScenario::default();
    };
    let top = document.table("the scenario");
    top.only(&["name", "time", "specs", "module", "server", "step"], out);
    let server_tables = top.tables("server", numbered("server"), out);
    let servers: Vec<Server> =
        server_tables.iter().filter_map(|table| server(table, out)).collect();
    if servers.len() > SERVERS_MAX {
        out.error(&top.span_of("server"), format!("there may be at most {SERVERS_MAX} servers"));
    }
    let module_tables = top.tables("module", numbered("module"), out);
    for (tables, what) in [(&server_tables, "servers"), (&module_tables, "modules")] {
        check_names_are_unique(tables, what, out);
    }
    let steps = top.tables("step", numbered("step"), out);
    if steps.is_empty() {
        let help = "add a [[step]], such as `send = \"ACTION\"` with `entity = \"TYPE/ID\"`";
        out.error_with_help(&(0..0), "the scenario has no steps", help);
    } else if steps.len() > STEPS_MAX {
        out.error(&top.span_of("step"), format!("there may be at most {STEPS_MAX} steps"));
    }
    let known: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    ParsedScenario {
        title: value::text(&top, "name", out),
        time: time(&top, out),
        specs: top
            .has("specs")
            .then(|| top.texts("specs", out).iter().map(ToString::to_string).collect()),
        modules: module_tables.iter().filter_map(|table| module(table, folder, out)).collect(),
        steps: steps.iter().filter_map(|table| step::read(table, &known, out)).collect(),
        servers,
    }
}

fn time(top: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Time {
    match value::text(top, "time", out).as_deref() {
        None | Some("real") => Time::Real,
        Some("virtual") => Time::Virtual,
        Some(other) => {
            let message = format!("`{other}` is not a time");
            let help = "write \"real\", or \"virtual\", which jumps to the next event whenever nothing runs";
            out.error_with_help(&top.span_of("time"), message, help);
            Time::Real
        }
    }
}

fn numbered(what: &str) -> impl Fn(usize) -> String {
    move |number| format!("{what} {number}")
}

/// Reports each name that an earlier table has too.
fn check_names_are_unique(tables: &[Table<'_, '_>], what: &str, out: &mut Diagnostics<'_>) {
    let mut seen = BTreeSet::new();
    for table in tables {
        let Some(name) = table.value("name").and_then(|name| name.get_ref().as_str()) else {
            continue;
        };
        if !seen.insert(name) {
            let message = format!("two {what} are named `{name}`");
            out.error_with_help(&table.span_of("name"), message, "give each a different name");
        }
    }
}

fn module(table: &Table<'_, '_>, folder: &Path, out: &mut Diagnostics<'_>) -> Option<Module> {
    const KEYS: [&str; 8] =
        ["name", "path", "manifest", "allow_hosts", "secrets", "memory", "fuel", "max_response"];
    table.only(&KEYS, out);
    let name = value::required_text(table, "name", out);
    let is_manifest = table.has("manifest");
    if is_manifest && table.has("path") {
        let message = "set `path`, or `manifest`, which names the module; not both";
        out.error(&table.span_of("path"), message);
    }
    let key = if is_manifest { "manifest" } else { "path" };
    let path = folder.join(value::required_text(table, key, out)?);
    if !path.is_file() {
        out.error(&table.span_of(key), format!("there is no file `{}`", path.display()));
    }
    let allow_hosts = table.texts("allow_hosts", out);
    for host in &allow_hosts {
        if let Err(error) = host.parse::<Destination>() {
            out.error(host.span(), error.to_string());
        }
    }
    let allow_hosts = allow_hosts.iter().map(ToString::to_string).collect();
    Some(Module {
        name: name?,
        path,
        is_manifest,
        allow_hosts,
        secrets: table.texts_by_name("secrets", out),
        memory_bytes: table.size("memory", out),
        fuel: value::count(table, "fuel", out),
        response_bytes: table.size("max_response", out),
    })
}

fn server(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Server> {
    table.only(&["name", "respond_after", "never", "status", "body"], out);
    let respond_after = value::duration(table, "respond_after", out);
    let never = table.flag("never", out).unwrap_or(false);
    if never && respond_after.is_some() {
        let message = "set `respond_after` or `never`, not both";
        out.error(&table.span_of("never"), message);
    }
    let status = value::count(table, "status", out).unwrap_or(200);
    if !(200..=599).contains(&status) {
        out.error(
            &table.span_of("status"),
            format!("`status` must be from 200 to 599, and is {status}"),
        );
    }
    Some(Server {
        name: value::required_text(table, "name", out)?,
        respond_after: (!never).then(|| respond_after.unwrap_or(Duration::ZERO)),
        status: u16::try_from(status).unwrap_or(200),
        body: value::text(table, "body", out).unwrap_or_default(),
    })
}
