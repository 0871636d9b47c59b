//! The configuration of the daemon: a TOML file, the options of the caller, and the environment.

mod cluster;
mod journal;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandglass_daemon::{Key, Keys, Permission};
use sandglass_host::file;
use sandglass_host::{CompileLimits, KeepArguments, MAX_FRAMES, RecordingLimits};
use sandglass_http::is_loopback_address;
use sandglass_journal::{Checking, RECORDING_MAX_BYTES};
use sandglass_liveness::Retention;
use sandglass_liveness::session::Ceilings;
use sandglass_runtime::{ACCOUNTS_ONE_IN, BUSY_SPAWNED_MAX};
use sandglass_source::{Diagnostic, Diagnostics, Document, Finding, Severity, Table, did_you_mean};
use sandglass_telemetry::Prefix;
use sandglass_telemetry::metrics::SCRAPE_MAX_BYTES;

pub(crate) use self::cluster::ClusterConfig;
pub use self::cluster::ClusterFiles;
use self::cluster::ClusterSection;
use crate::error::{Error, Result};
use crate::findings::in_one_line;
use crate::journal::JournalPlace;
use crate::tls::TlsFiles;
use crate::{DaemonOptions, Report, limits};

/// Largest configuration, in bytes: far more than people write by hand.
const SOURCE_MAX_BYTES: usize = 1 << 20;
/// Most keys: each request is compared with all of them.
const KEYS_MAX: usize = 1_000;
/// Where to listen by default.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 7341);
/// How long handlers may take to end. Supervisors of daemons usually wait 30 seconds before they kill.
const GRACE: Duration = Duration::from_secs(25);
/// The longest time that a setting may have.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest number that a setting may have.
const COUNT_MAX: u64 = 1_000_000;

/// The sections that are read by themselves, each into its own settings.
const SECTIONS: [&str; 9] =
    ["admission", "cache", "cluster", "compile", "http", "recording", "story", "metrics", "tls"];

/// Reads the text of a configuration file, and uses nothing of it. Returns everything that is wrong
/// in it.
#[must_use]
pub fn check_configuration(source: &str) -> Vec<Diagnostic> {
    Config::default().read_text(source, Path::new(""), &mut Vec::new())
}

/// All settings of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) journal: Option<JournalPlace>,
    /// The folder for modules that clients upload; by default beside a journal file.
    pub(crate) modules: Option<PathBuf>,
    /// When the journal is checked completely.
    pub(crate) checking: Checking,
    /// Which ended entities the daemon removes from the journal; none by default.
    pub(crate) retention: Option<Retention>,
    pub(crate) grace: Duration,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) keys: Keys,
    /// The environment variable of each secret that manifests name.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) host: sandglass_host::Settings,
    pub(crate) compiling: CompileLimits,
    pub(crate) http: sandglass_daemon::Settings,
    /// `None` if handlers are not recorded.
    pub(crate) recording: Option<RecordingLimits>,
    /// The account of one in so many completed handlers is recorded; 0 for none.
    pub(crate) accounts_one_in: u32,
    /// How many spawned entities of one tenant may have something to do.
    pub(crate) busy_spawned_max: u32,
    pub(crate) metrics: MetricsConfig,
    /// The largest limits that runs of sessions may have.
    pub(crate) ceilings: Ceilings,
    /// The section [cluster].
    cluster_section: ClusterSection,
    /// `None` if this host has the journal alone.
    pub(crate) cluster: Option<ClusterConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricsConfig {
    pub(crate) prefix: Prefix,
    pub(crate) scrape_max_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: LISTEN.into(),
            journal: None,
            modules: None,
            checking: Checking::Later,
            retention: None,
            grace: GRACE,
            tls: None,
            keys: Keys::default(),
            secrets: BTreeMap::new(),
            host: sandglass_host::Settings::default(),
            compiling: CompileLimits::default(),
            http: sandglass_daemon::Settings::default(),
            recording: Some(RecordingLimits::default()),
            accounts_one_in: ACCOUNTS_ONE_IN,
            busy_spawned_max: BUSY_SPAWNED_MAX,
            ceilings: Ceilings::default(),
            cluster_section: ClusterSection::default(),
            cluster: None,
            metrics: MetricsConfig {
                prefix: Prefix::default(),
                scrape_max_bytes: SCRAPE_MAX_BYTES,
            },
        }
    }
}

impl Config {
    /// Reads the configuration file, if one is named, then the options and the environment, which
    /// take precedence.
    ///
    /// # Errors
    /// Errors with everything that is wrong in the file, or with the first thing that is wrong in the
    /// options or the environment.
    pub(crate) fn read(options: &DaemonOptions, report: &Report) -> Result<Self> {
        let mut config = Self::default();
        let mut keys = Vec::new();
        if let Some(path) = &options.config {
            let source = file::read_text(path, SOURCE_MAX_BYTES as u64)?;
            let beside = path.parent().unwrap_or(Path::new(""));
            let wrong = config.read_text(&source, beside, &mut keys);
            let (wrong, warnings): (Vec<_>, Vec<_>) =
                wrong.into_iter().partition(|found| found.severity == Severity::Error);
            let findings: Vec<Finding> = Finding::all_of(path, &source, wrong).collect();
            if !findings.is_empty() {
                // Without the lines of the source if a URL, which may contain a password, is among them.
                let has_url =
                    ["postgres://", "postgresql://"].iter().any(|url| source.contains(url));
                let wrong = Error::Wrong(findings);
                return Err(if has_url { Error::Unusable(wrong.to_string()) } else { wrong });
            }
            // The only warning is about a cache without a folder, which the option may name.
            if options.compiled_cache.is_none() {
                Finding::all_of(path, &source, warnings)
                    .for_each(|found| report(&in_one_line([&found])));
            }
        }
        for variable in &options.api_key_env {
            let key = key(variable, variable).map_err(Error::Unusable)?;
            if let Some(same) = keys.iter().find(|other| key.is_same_text(other)) {
                return Err(Error::Unusable(format!(
                    "`{variable}` holds the key of `{}` too; give each owner a different key",
                    same.owner()
                )));
            }
            keys.push(key);
        }
        limits::from_environment(&mut config.ceilings)?;
        config.keys = keys.into_iter().collect();
        config.listen = options.listen.unwrap_or(config.listen);
        config.tls = options.tls.clone().or(config.tls);
        config.journal = options.journal.clone().or(config.journal);
        let compiled = options.compiled_cache.clone();
        config.host.compiled_cache_dir = compiled.or(config.host.compiled_cache_dir);
        let compiling = &mut config.compiling;
        compiling.timeout = options.compile_timeout.unwrap_or(compiling.timeout);
        compiling.memory_bytes = options.compile_memory_bytes.unwrap_or(compiling.memory_bytes);
        config.cluster = config.cluster_of(options)?;
        config.check()
    }

    fn check(self) -> Result<Self> {
        let Self { listen, keys, .. } = &self;
        if !is_loopback_address(listen.ip()) && keys.is_empty() {
            return Err(Error::Unusable(format!(
                "{listen} is not a loopback address, and without a key everyone who can reach it \
                 has all permissions; name a variable that holds a key with --api-key-env, or add a \
                 [[key]] to the configuration"
            )));
        }
        Ok(self)
    }

    /// Reads the text of a file in the folder `beside`, and returns everything that is wrong in it.
    pub(crate) fn read_text(
        &mut self,
        source: &str,
        beside: &Path,
        keys: &mut Vec<Key>,
    ) -> Vec<Diagnostic> {
        let mut out = Diagnostics::new(source);
        if let Some(document) = Document::parse(source, SOURCE_MAX_BYTES, &mut out) {
            self.read_sections(&document.table("the configuration"), beside, keys, &mut out);
        }
        out.finish()
    }

    fn read_sections(
        &mut self,
        table: &Table<'_, '_>,
        beside: &Path,
        keys: &mut Vec<Key>,
        out: &mut Diagnostics<'_>,
    ) {
        const KEYS: [&str; 8] = [
            "listen",
            "journal",
            "grace",
            "limits",
            "runtime_controls",
            "sdk_timeouts",
            "key",
            "secrets",
        ];
        table.only(&[&KEYS[..], &SECTIONS].concat(), out);
        self.read_listen(table, out);
        self.read_journal(table, beside, out);
        self.ceilings = limits::read(table, out);
        time(table, "grace", &mut self.grace, out);
        keys.extend(read_keys(table, out));
        self.read_secrets(table, out);
        self.read_each_section(table, beside, out);
    }

    fn read_each_section(&mut self, top: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) {
        for name in SECTIONS {
            let Some(table) = top.table(name, name, out) else { continue };
            match name {
                "admission" => self.read_admission(&table, out),
                "cache" => self.read_cache(&table, beside, out),
                "cluster" => self.cluster_section = ClusterSection::read(&table, beside, out),
                "compile" => read_compile(&table, &mut self.compiling, out),
                "http" => self.read_http(&table, out),
                "tls" => self.tls = read_tls(&table, beside, out),
                "story" => self.read_story(&table, out),
                "recording" => self.recording = read_recording(&table, out),
                _ => self.metrics.read(&table, out),
            }
        }
    }

    fn read_listen(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        let Some(text) = table.text("listen", out) else { return };
        match text.parse() {
            Ok(listen) => self.listen = listen,
            Err(_) => out.error_with_help(
                text.span(),
                format!("`{text}` is not an address"),
                "write an IP address and a port, such as \"127.0.0.1:7341\"",
            ),
        }
    }

    fn read_secrets(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        let Some(secrets) = table.table("secrets", "secrets", out) else { return };
        for (name, _, _) in secrets.entries() {
            if let Some(variable) = secrets.text(name, out) {
                self.secrets.insert(name.to_owned(), variable.to_string());
            }
        }
    }

    fn read_story(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        table.only(&["one_in", "frames"], out);
        count(table, "one_in", 0, &mut self.accounts_one_in, out);
        if let Some(frames) = table.count("frames", 0..=u64::from(MAX_FRAMES), out) {
            self.host.backtrace_frames = u32::try_from(frames).unwrap_or(MAX_FRAMES);
        }
    }

    fn read_admission(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        let host = &mut self.host;
        table.only(
            &[
                "max_runs",
                "max_queued",
                "max_runs_per_tenant",
                "max_queued_per_tenant",
                "max_asking",
                "max_open_requests",
                "max_busy_spawned_per_tenant",
            ],
            out,
        );
        count(table, "max_runs", 1, &mut host.max_runs, out);
        count(table, "max_queued", 0, &mut host.max_queued, out);
        count(table, "max_runs_per_tenant", 1, &mut host.max_runs_per_tenant, out);
        count(table, "max_queued_per_tenant", 0, &mut host.max_queued_per_tenant, out);
        count(table, "max_asking", 0, &mut host.max_asking, out);
        count(table, "max_open_requests", 1, &mut host.max_open_requests, out);
        count(table, "max_busy_spawned_per_tenant", 1, &mut self.busy_spawned_max, out);
    }

    /// The cache outlives the process, as the journal does.
    fn read_cache(&mut self, table: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) {
        table.only(&["compiled", "compiled_size"], out);
        let folder = table.text("compiled", out);
        match folder {
            Some(folder) if folder.as_str().is_empty() => {
                out.error(folder.span(), "`compiled` is empty; name a folder");
            }
            folder => {
                self.host.compiled_cache_dir = folder.map(|folder| beside.join(folder.as_str()));
            }
        }
        if let Some(size) = table.size("compiled_size", out) {
            self.host.compiled_cache_bytes = size;
            if !table.has("compiled") {
                out.warning(
                    &table.span_of("compiled_size"),
                    "`compiled_size` has no effect without a folder for compiled code",
                    "name the folder in `compiled`, or with --compiled-cache",
                );
            }
        }
    }

    fn read_http(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        let http = &mut self.http;
        let connections = &mut http.connections;
        const KNOWN: [&str; 15] = [
            "max_connections",
            "max_unauthenticated",
            "max_unauthenticated_per_address",
            "max_reserve",
            "max_waiting",
            "max_subscribers",
            "max_body",
            "max_module",
            "head_timeout",
            "idle_timeout",
            "body_timeout",
            "write_timeout",
            "request_timeout",
            "max_wait",
            "keep_alive",
        ];
        table.only(&KNOWN, out);
        count(table, "max_connections", 1, &mut connections.max_connections, out);
        count(table, "max_unauthenticated", 1, &mut connections.max_unauthenticated, out);
        let per_address = &mut connections.max_unauthenticated_per_address;
        count(table, "max_unauthenticated_per_address", 1, per_address, out);
        count(table, "max_reserve", 1, &mut connections.max_reserve, out);
        count(table, "max_waiting", 0, &mut http.max_waiting, out);
        count(table, "max_subscribers", 0, &mut http.max_subscribers, out);
        size(table, "max_body", &mut http.max_body_bytes, out);
        size(table, "max_module", &mut http.max_module_bytes, out);
        time(table, "head_timeout", &mut connections.head_timeout, out);
        time(table, "idle_timeout", &mut connections.idle_timeout, out);
        time(table, "body_timeout", &mut http.body_timeout, out);
        time(table, "write_timeout", &mut connections.write_timeout, out);
        time(table, "request_timeout", &mut http.request_timeout, out);
        time(table, "max_wait", &mut http.max_wait, out);
        time(table, "keep_alive", &mut http.keep_alive, out);
    }
}

impl MetricsConfig {
    fn read(&mut self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        table.only(&["prefix", "size"], out);
        if let Some(text) = table.text("prefix", out) {
            match Prefix::new(&text) {
                Ok(prefix) => self.prefix = prefix,
                Err(error) => out.error(text.span(), error.to_string()),
            }
        }
        size(table, "size", &mut self.scrape_max_bytes, out);
    }
}

fn read_compile(table: &Table<'_, '_>, limits: &mut CompileLimits, out: &mut Diagnostics<'_>) {
    table.only(&["timeout", "memory"], out);
    time(table, "timeout", &mut limits.timeout, out);
    match table.size("memory", out) {
        Some(memory) if memory < CompileLimits::MEMORY_MIN_BYTES => {
            let message = "`memory` must be at least 64MiB, which a small module needs";
            out.error(&table.span_of("memory"), message);
        }
        Some(memory) => limits.memory_bytes = memory,
        None => {}
    }
}

fn read_tls(table: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) -> Option<TlsFiles> {
    table.only(&["certificate", "key", "client_ca"], out);
    let certificate = table.required_text("certificate", out);
    let key = table.required_text("key", out);
    let client_ca = table.text("client_ca", out);
    Some(TlsFiles {
        certificate: beside.join(certificate?.as_str()),
        key: beside.join(key?.as_str()),
        client_ca: client_ca.map(|path| beside.join(path.as_str())),
    })
}

/// The limits of recordings; `None` if no host call is recorded.
fn read_recording(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<RecordingLimits> {
    table.only(&["calls", "size", "arguments"], out);
    let mut limits = RecordingLimits::default();
    count(table, "calls", 0, &mut limits.calls, out);
    match table.size("size", out) {
        Some(size) if size > RECORDING_MAX_BYTES as u64 => {
            out.error(
                &table.span_of("size"),
                "`size` must be at most 24MiB, the largest recording of a journal",
            );
        }
        Some(size) => limits.bytes = size,
        None => {}
    }
    if let Some(text) = table.text("arguments", out) {
        match text.as_str() {
            "hash" => limits.arguments = KeepArguments::No,
            "whole" => limits.arguments = KeepArguments::Yes,
            _ => out.error_with_help(
                text.span(),
                format!("`{text}` is not a way to record arguments"),
                "write \"hash\" or \"whole\"",
            ),
        }
    }
    (limits.calls > 0).then_some(limits)
}

fn time(table: &Table<'_, '_>, key: &str, to: &mut Duration, out: &mut Diagnostics<'_>) {
    let range = Duration::from_millis(1)..=TIME_MAX;
    if let Some(time) = table.duration_within(key, range, out) {
        *to = time;
    }
}

fn count<T: TryFrom<u64>>(
    table: &Table<'_, '_>,
    key: &str,
    least: u64,
    to: &mut T,
    out: &mut Diagnostics<'_>,
) {
    let count = table.count(key, least..=COUNT_MAX, out);
    if let Some(count) = count.and_then(|count| T::try_from(count).ok()) {
        *to = count;
    }
}

fn size(table: &Table<'_, '_>, key: &str, to: &mut usize, out: &mut Diagnostics<'_>) {
    /// Bodies are in memory.
    const SIZE_MAX: u64 = 1 << 30;
    match table.size(key, out) {
        Some(size) if size > SIZE_MAX => {
            out.error(&table.span_of(key), format!("`{key}` must be at most 1GiB"));
        }
        Some(size) => *to = usize::try_from(size).unwrap_or(usize::MAX),
        None => {}
    }
}

/// The keys. No two may have the same text, because each request must have one owner.
fn read_keys(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Key> {
    let tables = table.tables("key", |number| format!("key {number}"), out);
    if tables.len() > KEYS_MAX {
        out.error(&table.span_of("key"), format!("there may be at most {KEYS_MAX} keys"));
    }
    let mut keys: Vec<(Key, usize)> = Vec::new();
    for table in tables.iter().take(KEYS_MAX) {
        let Some(key) = read_key(table, out) else { continue };
        let span = table.span_of("env");
        if let Some((same, line)) = keys.iter().find(|(other, _)| key.is_same_text(other)) {
            let (owner, other) = (key.owner(), same.owner());
            out.error_with_help(
                &span,
                format!("`{owner}` has the same key as `{other}` in line {line}"),
                "give each owner a different key",
            );
        }
        let line = out.line(span.start);
        keys.push((key, line));
    }
    keys.into_iter().map(|(key, _)| key).collect()
}

fn read_key(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Key> {
    table.only(&["owner", "env", "tenant", "may"], out);
    let (owner, variable) = (table.required_name("owner", out), table.required_name("env", out));
    let tenant = table.name("tenant", out);
    let may = table.has("may").then(|| read_permissions(table, out));
    let (owner, variable) = (owner?, variable?);
    match key(&owner, &variable) {
        Ok(mut key) => {
            if let Some(tenant) = tenant {
                key = key.tenant(tenant.as_str());
            }
            Some(if let Some(may) = may { key.may(may) } else { key })
        }
        Err(message) => {
            out.error(variable.span(), message);
            None
        }
    }
}

fn read_permissions(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Permission> {
    let mut may = Vec::new();
    for name in table.names("may", out) {
        match Permission::ALL.into_iter().find(|one| one.as_str() == name.as_str()) {
            Some(permission) => may.push(permission),
            None => {
                let known = Permission::ALL.map(Permission::as_str);
                let message = format!("there is no permission `{name}`");
                out.error_with_help(name.span(), message, did_you_mean(&name, known));
            }
        }
    }
    may
}

/// The key of `owner`, from an environment variable. No message contains it.
fn key(owner: &str, variable: &str) -> Result<Key, String> {
    let text = std::env::var(variable)
        .map_err(|_| format!("the environment has no `{variable}`, the key of `{owner}`"))?;
    Key::new(owner, &text).map_err(|error| format!("`{variable}` holds no key: {error}"))
}

/// Errors if `new` changes what cannot change while the daemon runs.
pub(crate) fn require_same(running: &Config, new: &Config) -> Result<()> {
    let changed = [
        ("listen", running.listen != new.listen),
        ("journal", (&running.journal, &running.modules) != (&new.journal, &new.modules)),
        ("[journal] check", running.checking != new.checking),
        ("[journal] retention", running.retention != new.retention),
        ("grace", running.grace != new.grace),
        ("[http]", running.http != new.http),
        ("[recording]", running.recording != new.recording),
        ("[tls]", running.tls.is_some() != new.tls.is_some()),
        ("[metrics]", running.metrics != new.metrics),
        ("[compile]", running.compiling != new.compiling),
        ("[cluster]", running.cluster != new.cluster),
        ("[cache]", cache(&running.host) != cache(&new.host)),
        ("[admission]", admission(running) != admission(new)),
    ];
    let changed = changed.into_iter().find_map(|(what, changed)| changed.then_some(what));
    match changed {
        None => Ok(()),
        Some(what) => Err(Error::Unusable(format!(
            "restart the daemon, or undo the change: `{what}` cannot change while the daemon runs"
        ))),
    }
}

fn cache(settings: &sandglass_host::Settings) -> (Option<&Path>, u64) {
    (settings.compiled_cache_dir.as_deref(), settings.compiled_cache_bytes)
}

fn admission(config: &Config) -> [u64; 7] {
    let settings = &config.host;
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    [
        settings.max_runs.into(),
        wide(settings.max_queued),
        settings.max_runs_per_tenant.into(),
        wide(settings.max_queued_per_tenant),
        settings.max_asking.into(),
        settings.max_open_requests.into(),
        config.busy_spawned_max.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> (Config, Vec<String>) {
        let mut config = Config::default();
        let wrong = config.read_text(source, Path::new("/at"), &mut Vec::new());
        (config, wrong.iter().map(ToString::to_string).collect())
    }

    /// Reads a configuration in which nothing is wrong.
    fn read_valid(source: &str) -> Config {
        let (config, wrong) = read(source);
        assert_eq!(wrong, Vec::<String>::new(), "{source}");
        config
    }

    #[test]
    fn recordings_are_bounded_or_off() {
        let config = read_valid("[recording]\ncalls = 50\nsize = \"1MiB\"\narguments = \"whole\"");
        let limits = RecordingLimits { calls: 50, bytes: 1 << 20, arguments: KeepArguments::Yes };
        assert_eq!(config.recording, Some(limits));
        assert_eq!(read("[recording]\ncalls = 0").0.recording, None);
        let (_, wrong) = read("[recording]\nsize = \"1GiB\"\narguments = \"half\"");
        assert!(wrong[0].contains("24MiB") && wrong[1].contains("half"), "{wrong:?}");
    }

    #[test]
    fn accounts_are_sampled_and_their_frames_bounded_or_off() {
        let config = read_valid("[story]\none_in = 1\nframes = 0");
        assert_eq!((config.accounts_one_in, config.host.backtrace_frames), (1, 0));
        let (_, wrong) = read("[story]\none_in = -1\nframes = 33");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn the_folder_of_compiled_code_is_relative_to_the_file() {
        let config = read_valid("[cache]\ncompiled = \"code\"\ncompiled_size = \"1GiB\"");
        assert_eq!(cache(&config.host), (Some(Path::new("/at/code")), 1 << 30));
        assert_eq!(read("").0.host.compiled_cache_dir, None);
        let (config, warnings) = read("[cache]\ncompiled_size = \"1GiB\"");
        assert_eq!(cache(&config.host), (None, 1 << 30));
        assert!(warnings[0].starts_with("2:") && warnings[0].contains("warning"), "{warnings:?}");
        assert!(warnings[0].contains("--compiled-cache"), "{warnings:?}");
        let (_, wrong) = read("[cache]\ncompile = \"code\"");
        assert!(wrong[0].contains("compiled"), "{wrong:?}");
    }

    #[test]
    fn limits_of_compiling_are_read_and_bounded() {
        let config = read_valid("[compile]\ntimeout = \"5s\"\nmemory = \"1GiB\"");
        let limits = CompileLimits { timeout: Duration::from_secs(5), memory_bytes: 1 << 30 };
        assert_eq!(config.compiling, limits);
        assert_eq!(read("").0.compiling, CompileLimits::default());
        let (_, wrong) = read("[compile]\ntimeout = \"0s\"\nmemory = \"1MiB\"\nmemroy = 1");
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong.iter().any(|one| one.contains("did you mean `memory`?")), "{wrong:?}");
        assert!(wrong.iter().any(|one| one.contains("at least 64MiB")), "{wrong:?}");
    }

    #[test]
    fn each_setting_is_read() {
        let source = r#"
            listen = "127.0.0.1:1"
            journal = "runs.db"
            grace = "3s"
            secrets = { api = "API_TOKEN" }
            [admission]
            max_runs = 5
            max_queued = 0
            max_runs_per_tenant = 2
            max_queued_per_tenant = 3
            max_asking = 4
            max_open_requests = 5
            max_busy_spawned_per_tenant = 6
            [http]
            max_connections = 6
            max_unauthenticated = 9
            max_unauthenticated_per_address = 10
            max_reserve = 11
            max_waiting = 7
            max_subscribers = 8
            max_body = "1MiB"
            max_module = "2MiB"
            head_timeout = "1s"
            idle_timeout = "7s"
            body_timeout = "2s"
            write_timeout = "3s"
            request_timeout = "4s"
            max_wait = "5s"
            keep_alive = "6s"
        "#;
        let config = read_valid(source);
        assert_eq!(config.journal, Some(JournalPlace::File("/at/runs.db".into())));
        assert_eq!((config.listen.port(), config.grace.as_secs()), (1, 3));
        assert_eq!(config.secrets["api"], "API_TOKEN");
        assert_eq!(admission(&config), [5, 0, 2, 3, 4, 5, 6]);
        let secs = Duration::from_secs;
        let http = sandglass_daemon::Settings {
            connections: sandglass_http::Settings {
                max_connections: 6,
                max_unauthenticated: 9,
                max_unauthenticated_per_address: 10,
                max_reserve: 11,
                head_timeout: secs(1),
                idle_timeout: secs(7),
                write_timeout: secs(3),
                ..sandglass_http::Settings::default()
            },
            max_waiting: 7,
            max_subscribers: 8,
            max_body_bytes: 1 << 20,
            max_module_bytes: 2 << 20,
            body_timeout: secs(2),
            request_timeout: secs(4),
            max_wait: secs(5),
            keep_alive: secs(6),
        };
        assert_eq!(config.http, http);
    }

    #[test]
    fn a_journal_is_a_path_or_a_table() {
        let read_one = |source: &str| {
            let config = read_valid(source);
            (config.journal, config.retention)
        };
        let path = Some(JournalPlace::File("/at/runs.db".into()));
        let days = Retention::OlderThan(Duration::from_secs(30 * 24 * 3600));
        assert_eq!(read_one("journal = \"runs.db\""), (path.clone(), None));
        let table = "[journal]\npath = \"runs.db\"\nretention = \"30d\"";
        assert_eq!(read_one(table), (path.clone(), Some(days)));
        let table = "[journal]\npath = \"runs.db\"\nkeep = 100";
        assert_eq!(read_one(table), (path, Some(Retention::Keep(100))));
        let checking =
            |table: &str| read_valid(&format!("[journal]\npath = \"a\"\n{table}")).checking;
        assert_eq!(checking("check = \"start\""), Checking::AtOpening);
        assert_eq!([checking(""), checking("check = \"later\"")], [Checking::Later; 2]);
        let (_, wrong) = read("[journal]\ncheck = \"never\"");
        assert!(wrong[0].contains("\"start\" or \"later\""), "{wrong:?}");
        let (_, wrong) = read("[journal]\nkeep = 1\nretention = \"1d\"");
        assert!(wrong[0].contains("not both"), "{wrong:?}");
        let config = read_valid("[journal]\nurl_env = \"URL\"\nmodules = \"put\"");
        assert_eq!(config.journal, Some(JournalPlace::UrlInVariable("URL".to_owned())));
        assert_eq!(config.modules, Some("/at/put".into()));
        let config = read_valid("[journal]\nurl_file = \"url\"");
        assert_eq!(config.journal, Some(JournalPlace::UrlInFile("/at/url".into())));
        let (_, wrong) = read("[journal]\npath = \"runs.db\"\nurl_env = \"URL\"");
        assert!(wrong[0].contains("at one place"), "{wrong:?}");
    }

    #[test]
    fn a_path_of_a_journal_is_not_a_database() {
        for place in ["env:RUNS", "postgres://ann:secret@h/d", "postgresql://ann:secret@h/d"] {
            for source in [format!("journal = {place:?}"), format!("[journal]\npath = {place:?}")] {
                let (_, wrong) = read(&source);
                assert!(wrong[0].contains("`url_env`"), "{wrong:?}");
                assert!(!wrong[0].contains("secret"), "{wrong:?}");
            }
        }
        let file = Some(JournalPlace::File("/at/./env:RUNS".into()));
        assert_eq!(read_valid("journal = \"./env:RUNS\"").journal, file);
    }

    #[test]
    fn errors_have_a_line_and_suggest_what_was_meant() {
        for (source, expected) in [
            (
                "\nlistne = \"127.0.0.1:1\"",
                "2:1: error: unknown key `listne` in the configuration\n  help: did you mean `listen`?",
            ),
            ("listen = \"here\"", "1:10: error: `here` is not an address"),
            ("grace = 5", "`5` has no unit"),
            (
                "[http]\nmax_connections = 0",
                "2:19: error: `max_connections` in http must be a whole number from 1",
            ),
            ("[[key]]\nowner = \"ann\"", "key 1 has no `env`"),
            (
                "[[key]]\nowner = \"ann\"\nenv = \"NO_SUCH_VARIABLE_HERE\"",
                "3:7: error: the environment has no `NO_SUCH_VARIABLE_HERE`",
            ),
            (
                "[[key]]\nowner = \"ann\"\nenv = \"CARGO_MANIFEST_DIR\"\n\
                 [[key]]\nowner = \"bob\"\nenv = \"CARGO_MANIFEST_DIR\"",
                "6:1: error: `bob` has the same key as `ann` in line 3",
            ),
            ("[[key]]\nowner = \"a\"\nenv = \"PATH\"\nmay = [\"raed\"]", "did you mean `read`?"),
            ("[admission]\nmax_rusn = 1", "did you mean `max_runs`?"),
            (
                "[metrics]\nprefix = \"Acme\"",
                "2:10: error: `Acme` is not a metric prefix: use lower",
            ),
            ("[metrics]\nprefixes = \"a\"", "did you mean `prefix`?"),
            ("listen", "1:"),
        ] {
            let (_, wrong) = read(source);
            assert!(wrong.iter().any(|one| one.contains(expected)), "{source}: {wrong:?}");
        }
    }
}
