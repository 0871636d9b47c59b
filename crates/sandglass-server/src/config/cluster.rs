//! The section `[cluster]` of the configuration, and its options: whether and how this host shares the
//! journal with others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use sandglass_cluster::TTL_MAX;
use sandglass_daemon::{ClusterKey, Keys};
use sandglass_http::{is_loopback_address, is_loopback_host};
use sandglass_source::{Diagnostics, Table, printable};

use super::Config;
use crate::DaemonOptions;
use crate::error::{Error, Result};
use crate::journal::JournalPlace;
use crate::tls::{PeerFiles, TlsFiles};

/// How long the lease of a host is valid by default after the last beat that the database acknowledged.
const TTL: Duration = Duration::from_secs(5);
/// The shortest lease: a host beats every second, and needs a margin.
const TTL_MIN: Duration = Duration::from_secs(2);
/// Longest address, in bytes, as other limits of names.
const ADVERTISE_MAX_BYTES: usize = 256;

/// How this host is a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterConfig {
    /// Where other hosts reach this one: `http://HOST:PORT` or `https://HOST:PORT`, without a path.
    pub(crate) advertise: String,
    /// The key that all hosts share.
    pub(crate) key: Option<ClusterKey>,
    /// The certificates by which hosts prove that they are hosts.
    pub(crate) certificates: Option<PeerFiles>,
    /// Whether other hosts prove by these certificates that they are hosts, which requires that this host
    /// serves HTTPS.
    pub(crate) has_mutual_tls: bool,
    /// How long a host that shows no sign of life keeps its partitions.
    pub(crate) ttl: Duration,
    /// Whether a host whose address refuses connections is declared dead at once. Not possible behind a
    /// proxy, which may refuse for a host that lives.
    pub(crate) fast_takeover: bool,
}

/// The section, of which options can replace a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterSection {
    advertise: Option<String>,
    key_env: Option<String>,
    certificates: ClusterFiles,
    ttl: Duration,
    fast_takeover: bool,
}

/// The files of a cluster with certificates, as far as they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFiles {
    /// The CA of all hosts, in PEM.
    pub ca: Option<PathBuf>,
    /// The certificate chain of this host and its private key, in PEM; by default those for HTTPS.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            advertise: None,
            key_env: None,
            certificates: ClusterFiles::default(),
            ttl: TTL,
            fast_takeover: true,
        }
    }
}

impl ClusterSection {
    pub(super) fn read(table: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) -> Self {
        const KNOWN: [&str; 7] = [
            "advertise",
            "key_env",
            "ca",
            "certificate",
            "certificate_key",
            "ttl",
            "fast_takeover",
        ];
        table.only(&KNOWN, out);
        let mut section = Self::default();
        if let Some(text) = table.text("advertise", out) {
            match advertised(text.as_str()) {
                Ok(address) => section.advertise = Some(address),
                Err(why) => out.error(text.span(), format!("`advertise` {why}")),
            }
        }
        section.key_env = table.text("key_env", out).map(|variable| variable.to_string());
        section.certificates = ClusterFiles::read(table, beside, out);
        section.ttl = table.duration_within("ttl", TTL_MIN..=TTL_MAX, out).unwrap_or(TTL);
        section.fast_takeover = table.flag("fast_takeover", out).unwrap_or(true);
        section
    }
}

impl ClusterConfig {
    /// The name or IP address by which other hosts reach this one.
    pub(crate) fn host(&self) -> &str {
        let rest = self.advertise.split_once("://").map_or("", |(_, rest)| rest);
        match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => rest.split(':').next().unwrap_or_default(),
        }
    }
}

impl ClusterFiles {
    fn read(table: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) -> Self {
        let mut path = |key: &str| table.text(key, out).map(|path| beside.join(path.as_str()));
        let (ca, certificate, key) = (path("ca"), path("certificate"), path("certificate_key"));
        for (name, other) in
            [("certificate", "certificate_key"), ("certificate_key", "certificate")]
        {
            if table.has(name) && !table.has(other) {
                out.error(&table.span_of(name), format!("`{name}` needs `{other}` beside it"));
            }
        }
        if table.has("certificate") && !table.has("ca") {
            out.error(
                &table.span_of("certificate"),
                "`certificate` has no effect without `ca`, the file with the CA of all hosts",
            );
        }
        Self { ca, certificate: certificate.zip(key) }
    }

    /// The files that are used by a host that serves HTTPS with `tls`; `None` if there is no CA.
    fn complete(self, tls: Option<&TlsFiles>) -> Result<Option<PeerFiles>> {
        let Some(ca) = self.ca else { return Ok(None) };
        let of_tls = tls.map(|files| (files.certificate.clone(), files.key.clone()));
        match self.certificate.or(of_tls) {
            Some((certificate, key)) => Ok(Some(PeerFiles { ca, certificate, key })),
            None => Err(Error::Unusable(
                "with a CA of the cluster, each host needs a certificate of it; name this host's with \
                 --cluster-cert and --cluster-cert-key, or as `certificate` and `certificate_key` in \
                 [cluster]"
                    .to_owned(),
            )),
        }
    }
}

impl Config {
    /// The cluster, from the section and the options. Everything else was read.
    pub(super) fn cluster_of(&self, options: &DaemonOptions) -> Result<Option<ClusterConfig>> {
        let unusable = |message: String| Err(Error::Unusable(message));
        let section = self.cluster_section.clone();
        if options.activate && options.advertise.is_none() && section.advertise.is_none() {
            return unusable(
                "--activate is for the hosts of a cluster: add --advertise, or omit it".to_owned(),
            );
        }
        let advertise = match &options.advertise {
            Some(text) => match advertised(text) {
                Ok(address) => Some(address),
                Err(why) => return unusable(format!("--advertise {why}")),
            },
            None => section.advertise,
        };
        let Some(advertise) = advertise else {
            let given = [
                ("--cluster-key-env", options.cluster_key_env.is_some()),
                ("--cluster-ca", options.cluster_files.ca.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                None => Ok(None),
                Some((option, _)) => unusable(format!(
                    "{option} has no effect without the address of this host; state it with \
                     --advertise, or as `advertise` in [cluster]"
                )),
            };
        };
        if !self.journal.as_ref().is_some_and(JournalPlace::is_database) {
            return unusable(format!(
                "hosts share a PostgreSQL database, and this one, {advertise}, has none; name a \
                 variable that holds its URL with --journal-env, or `url_env` in [journal]"
            ));
        }
        if self.tls.is_some() && advertise.starts_with("http://") {
            return unusable(format!(
                "this host serves HTTPS only, so other hosts cannot reach it at {advertise}; advertise \
                 https://"
            ));
        }
        let ClusterFiles { ca, certificate } = options.cluster_files.clone();
        let files = ClusterFiles {
            ca: ca.or(section.certificates.ca),
            certificate: certificate.or(section.certificates.certificate),
        };
        let certificates = files.complete(self.tls.as_ref())?;
        let requires_certificates =
            self.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        if requires_certificates && certificates.is_none() {
            return unusable(
                "`client_ca` in [tls] requires a certificate of each client, and hosts present none to \
                 each other without a CA of their own; name it with --cluster-ca, or as `ca` in [cluster]"
                    .to_owned(),
            );
        }
        let variable = options.cluster_key_env.as_ref().or(section.key_env.as_ref());
        let key = variable.map(|variable| read_key(variable, &self.keys)).transpose()?;
        // Other hosts reach this one by its certificate only if it serves HTTPS itself.
        let has_mutual_tls = certificates.is_some() && self.tls.is_some();
        if key.is_none() && !has_mutual_tls {
            let is_local = is_loopback_address(self.listen.ip()) && is_on_this_machine(&advertise);
            if !self.keys.is_empty() || !is_local {
                return unusable(
                    "hosts that require keys, or are reached from other machines, need a key that they \
                     share; put the same random text into an environment variable of each, and name it \
                     with --cluster-key-env, or as `key_env` in [cluster]; or give them HTTPS and \
                     certificates of a CA of their own (--cluster-ca)"
                        .to_owned(),
                );
            }
        }
        let ClusterSection { ttl, fast_takeover, .. } = section;
        Ok(Some(ClusterConfig { advertise, key, certificates, has_mutual_tls, ttl, fast_takeover }))
    }
}

/// The cluster key in an environment variable, or two of them; none may be one of `keys`, those of clients.
/// No message contains it.
fn read_key(variable: &str, keys: &Keys) -> Result<ClusterKey> {
    if !JournalPlace::is_variable_name(variable) {
        return Err(Error::Unusable(
            "`--cluster-key-env` and `key_env` in [cluster] take the name of an environment variable \
             (letters, digits and `_`): put the key into the variable"
                .to_owned(),
        ));
    }
    let text = std::env::var(variable).map_err(|_| {
        Error::Unusable(format!(
            "the environment has no `{variable}`, which is to hold the key of the cluster"
        ))
    })?;
    let key = ClusterKey::new(&text).map_err(|error| {
        Error::Unusable(format!("`{variable}` cannot be used as the cluster key: {error}"))
    })?;
    match keys.owner_of(&key) {
        None => Ok(key),
        Some(owner) => Err(Error::Unusable(format!(
            "`{variable}` holds the API key of `{owner}`, who could act for every client with it; make \
             another key for the hosts alone, for example with `openssl rand -hex 32`"
        ))),
    }
}

/// The address that other hosts use, without a slash at its end.
///
/// # Errors
/// Errors with what is wrong. A login is not repeated, because it contains a password.
fn advertised(text: &str) -> std::result::Result<String, String> {
    let example = "write http://HOST:PORT or https://HOST:PORT";
    if text.contains('@') {
        return Err(format!("must not contain a login; {example}"));
    }
    if text.len() > ADVERTISE_MAX_BYTES {
        return Err(format!("must have at most {ADVERTISE_MAX_BYTES} bytes; {example}"));
    }
    let shown = printable(text);
    let address: Uri = text.parse().map_err(|_| format!("is no address: `{shown}`; {example}"))?;
    let host = address.host().filter(|host| !host.is_empty());
    let (Some("http" | "https"), Some(host)) = (address.scheme_str(), host) else {
        return Err(format!("is no address: `{shown}`; {example}"));
    };
    // `Uri` accepts a port that does not fit 16 bits, and then behaves as if there was none.
    let port = address.authority().and_then(|one| one.as_str().strip_prefix(one.host()));
    let port = port.and_then(|rest| rest.strip_prefix(':'));
    if port.is_some_and(|port| port.parse::<u16>().ok().is_none_or(|port| port == 0)) {
        return Err(format!("has no valid port: `{shown}`; {example}"));
    }
    if address.path() != "/" || address.query().is_some() || text.contains('#') {
        return Err(format!("must not contain a path or a query: `{shown}`; {example}"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified()) {
        return Err(format!(
            "must be an address of this host, and `{shown}` stands for all; {example}"
        ));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Whether an address that was checked is one of this machine.
fn is_on_this_machine(advertise: &str) -> bool {
    advertise.parse::<Uri>().is_ok_and(|address| address.host().is_some_and(is_loopback_host))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sandglass_daemon::Key;
    use sandglass_host::CompileHelper;

    use super::*;

    const ADDRESS: &str = "http://127.0.0.1:7341";

    fn options(advertise: Option<&str>, key_env: Option<&str>) -> DaemonOptions {
        DaemonOptions {
            specs: "specs".into(),
            config: None,
            listen: None,
            journal: None,
            compiled_cache: None,
            api_key_env: Vec::new(),
            workflows: None,
            packs: None,
            advertise: advertise.map(str::to_owned),
            cluster_key_env: key_env.map(str::to_owned),
            cluster_files: ClusterFiles::default(),
            tls: None,
            compile_helper: CompileHelper::this_program(["none"]),
            compile_timeout: None,
            compile_memory_bytes: None,
            activate: false,
        }
    }

    fn config(source: &str) -> (Config, Vec<String>) {
        let mut config = Config::default();
        let wrong = config.read_text(source, Path::new("/at"), &mut Vec::new());
        (config, wrong.iter().map(ToString::to_string).collect())
    }

    fn cluster(
        source: &str,
        options: &DaemonOptions,
    ) -> std::result::Result<Option<ClusterConfig>, String> {
        let (config, wrong) = config(source);
        assert_eq!(wrong, Vec::<String>::new(), "{source}");
        config.cluster_of(options).map_err(|error| error.to_string())
    }

    const DATABASE: &str = "[journal]\nurl_env = \"JOURNAL\"\n";

    #[test]
    fn a_host_with_an_address_and_a_database_is_a_member() {
        let expected = ClusterConfig {
            advertise: ADDRESS.to_owned(),
            key: None,
            certificates: None,
            has_mutual_tls: false,
            ttl: TTL,
            fast_takeover: true,
        };
        let from_option = cluster(DATABASE, &options(Some("http://127.0.0.1:7341/"), None));
        assert_eq!(from_option, Ok(Some(expected.clone())));
        let section = format!(
            "{DATABASE}[cluster]\nadvertise = \"{ADDRESS}\"\nttl = \"30s\"\nfast_takeover = false\n"
        );
        let expected =
            ClusterConfig { ttl: Duration::from_secs(30), fast_takeover: false, ..expected };
        assert_eq!(cluster(&section, &options(None, None)), Ok(Some(expected.clone())));
        let option = cluster(&section, &options(Some("https://localhost"), None));
        let expected = ClusterConfig { advertise: "https://localhost".to_owned(), ..expected };
        assert_eq!(option, Ok(Some(expected)));
        // A shared file has what all hosts share; without an address, a host stays alone.
        let shared = format!("{DATABASE}[cluster]\nttl = \"30s\"\nkey_env = \"PATH\"\n");
        assert_eq!(cluster(&shared, &options(None, None)), Ok(None));
        assert_eq!(cluster("", &options(None, None)), Ok(None));
    }

    #[test]
    fn a_host_that_is_not_alone_on_its_machine_needs_a_key() {
        let wrong = |(mut config, _): (Config, Vec<String>),
                     options: &DaemonOptions,
                     change: fn(&mut Config)| {
            change(&mut config);
            config.cluster_of(options).expect_err("it has no key").to_string()
        };
        let keyed = |config: &mut Config| {
            config.keys =
                [Key::new("ann", "a-key-of-a-client").expect("a key")].into_iter().collect();
        };
        let open = |config: &mut Config| config.listen = ([0, 0, 0, 0], 7341).into();
        let local = options(Some(ADDRESS), None);
        for (options, change) in [
            (&local, keyed as fn(&mut Config)),
            (&local, open),
            (&options(Some("http://host.example:7341"), None), |_| {}),
        ] {
            let why = wrong(config(DATABASE), options, change);
            assert!(why.contains("--cluster-key-env"), "{why}");
        }
        // A variable that every process of cargo has, and that can be a key.
        let with_key = cluster(DATABASE, &options(Some(ADDRESS), Some("CARGO_MANIFEST_DIR")));
        assert!(with_key.is_ok_and(|one| one.is_some_and(|one| one.key.is_some())));
        let section = format!("{DATABASE}[cluster]\nkey_env = \"CARGO_MANIFEST_DIR\"\n");
        let with_key = cluster(&section, &options(Some("http://host.example:7341"), None));
        assert!(with_key.is_ok_and(|one| one.is_some_and(|one| one.key.is_some())));
    }

    #[test]
    fn certificates_of_a_ca_replace_the_key_where_there_is_https() {
        const TLS: &str = "[tls]\ncertificate = \"chain.pem\"\nkey = \"key.pem\"\n";
        let wide = options(Some("https://host.example:7341"), None);
        let files = |certificate: &str, key: &str| PeerFiles {
            ca: "/at/ca.pem".into(),
            certificate: certificate.into(),
            key: key.into(),
        };
        let own = "ca = \"ca.pem\"\ncertificate = \"own.pem\"\ncertificate_key = \"own-key.pem\"\n";
        for (section, expected) in [
            ("ca = \"ca.pem\"\n", files("/at/chain.pem", "/at/key.pem")),
            (own, files("/at/own.pem", "/at/own-key.pem")),
        ] {
            let source = format!("{DATABASE}{TLS}[cluster]\n{section}");
            let found = cluster(&source, &wide).expect("a cluster").expect("a member");
            assert_eq!((found.certificates, found.has_mutual_tls), (Some(expected), true));
            // A CA for clients is another one.
            let both = source.replace("[cluster]", "client_ca = \"clients.pem\"\n[cluster]");
            assert!(cluster(&both, &wide).is_ok());
        }
        let mut by_option = options(Some("https://host.example:7341"), None);
        by_option.cluster_files.ca = Some("/option/ca.pem".into());
        let source = format!("{DATABASE}{TLS}[cluster]\n{own}");
        let found = cluster(&source, &by_option).expect("a cluster").expect("a member");
        let files =
            PeerFiles { ca: "/option/ca.pem".into(), ..files("/at/own.pem", "/at/own-key.pem") };
        assert_eq!(found.certificates, Some(files));

        for (source, options, expected) in [
            (format!("{DATABASE}[cluster]\nca = \"ca.pem\"\n"), &wide, "--cluster-cert"),
            // Without HTTPS of its own, others cannot prove themselves to it.
            (format!("{DATABASE}[cluster]\n{own}"), &wide, "--cluster-key-env"),
            (
                format!(
                    "{DATABASE}{TLS}client_ca = \"clients.pem\"\n[cluster]\nkey_env = \"PATH\"\n"
                ),
                &wide,
                "--cluster-ca",
            ),
        ] {
            let why = cluster(&source, options).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
        by_option.advertise = None;
        let why = cluster(DATABASE, &by_option).expect_err("no address");
        assert!(why.contains("--cluster-ca has no effect"), "{why}");
        let (_, wrong) = config("[cluster]\ncertificate = \"own.pem\"\n");
        assert!(wrong.iter().any(|one| one.contains("needs `certificate_key`")), "{wrong:?}");
        assert!(wrong.iter().any(|one| one.contains("no effect without `ca`")), "{wrong:?}");
    }

    #[test]
    fn a_cluster_key_is_no_key_of_a_client() {
        // A variable that every process of cargo has, and that can be a key.
        let text = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let (mut config, _) = config(DATABASE);
        config.keys = [Key::new("ann", &text).expect("a key")].into_iter().collect();
        let refused = config.cluster_of(&options(Some(ADDRESS), Some("CARGO_MANIFEST_DIR")));
        let why = refused.expect_err("ann has it").to_string();
        assert!(why.contains("API key of `ann`") && !why.contains(&text), "{why}");
    }

    #[test]
    fn the_host_of_an_address_is_what_certificates_have_to_name() {
        for (advertise, host) in [
            ("https://host.example:7341", "host.example"),
            ("https://10.0.0.1", "10.0.0.1"),
            ("https://[::1]:7341", "::1"),
        ] {
            let found = cluster(DATABASE, &options(Some(advertise), Some("CARGO_MANIFEST_DIR")));
            assert_eq!(found.expect("a cluster").expect("a member").host(), host);
        }
    }

    #[test]
    fn what_is_missing_is_named_and_keys_are_not_shown() {
        for (source, options, expected) in [
            ("", options(Some(ADDRESS), None), "--journal-env"),
            ("journal = \"runs.db\"", options(Some(ADDRESS), None), "--journal-env"),
            (DATABASE, options(None, Some("PATH")), "--advertise"),
            (
                DATABASE,
                options(Some(ADDRESS), Some("NO_SUCH_VARIABLE")),
                "has no `NO_SUCH_VARIABLE`",
            ),
            (DATABASE, options(Some(ADDRESS), Some("a-secret-key-itself!")), "take the name"),
            (
                "[journal]\nurl_env = \"JOURNAL\"\n[tls]\ncertificate = \"a\"\nkey = \"b\"",
                options(Some(ADDRESS), None),
                "advertise https://",
            ),
            (
                DATABASE,
                options(Some("http://ann:secret@host"), None),
                "--advertise must not contain a login",
            ),
        ] {
            let why = cluster(source, &options).expect_err(expected);
            assert!(why.contains(expected) && !why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        for good in
            ["http://a", "https://a.example:1", "http://[::1]:7341/", "http://10.0.0.1:65535"]
        {
            assert!(advertised(good).is_ok(), "{good}");
        }
        let long = format!("http://{}", "a".repeat(300));
        for bad in [
            "",
            "host:7341",
            "ftp://a",
            "http://",
            "http://:1",
            "http://a:0",
            "http://a:70000",
            "http://a/path",
            "http://a?b",
            "http://a/#b",
            "http://a b",
            "http://0.0.0.0:7341",
            "http://[::]:7341",
            "http://ann@a",
            &long,
        ] {
            assert!(advertised(bad).is_err(), "{bad:?}");
        }
        let (_, wrong) =
            config("[cluster]\nadvertise = \"here\"\nttl = \"1s\"\nfast_takeover = 1\nkey = \"k\"");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(
            wrong.iter().any(|one| one.contains("2:13") && one.contains("http://HOST:PORT")),
            "{wrong:?}"
        );
    }
}
