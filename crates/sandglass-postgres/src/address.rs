//! Where a database is and how it is reached: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// The environment variable with the password of databases whose URL has none, as in libpq.
pub const PASSWORD_VARIABLE: &str = "PGPASSWORD";

/// Why a text is not the URL of a database. The error never contains the text, because it may
/// contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the database's URL is not valid: {0}")]
pub struct InvalidUrl(String);

/// The URL of a database, with its password. The password is in no output.
#[derive(Clone)]
pub struct Address {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    pub(crate) password_file: Option<PathBuf>,
    /// The servers and the database, for messages.
    place: String,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Off,
    /// Encrypted, to a server with a certificate for its name: one from this file, or one that the
    /// system trusts.
    Verified {
        roots: Option<PathBuf>,
    },
}

impl Address {
    /// Reads a URL: `postgresql://USER[:PASSWORD]@HOST[:PORT][,HOST[:PORT]]/DATABASE[?PARAMETERS]`.
    /// With several hosts, the first one that accepts writes is used. A host that is a folder
    /// (written with `%2F`) has a Unix socket. The parameters:
    ///
    /// - `sslmode`: `disable`, or `require` and `verify-full`, which both check the server's
    ///   certificate and its name. Without it, connections to other machines are checked and
    ///   connections to this one are not encrypted.
    /// - `sslrootcert`: a PEM file with the certificates to trust, instead of the system's.
    /// - `password_file`: a file with the password, read for each connection.
    /// - `application_name`: how the server lists the connections; `sandglass` if absent.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn parse(url: &str) -> Result<Self, InvalidUrl> {
        let rest = url
            .strip_prefix("postgresql://")
            .or_else(|| url.strip_prefix("postgres://"))
            .ok_or_else(|| invalid("it does not start with `postgresql://`"))?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) =
            rest.split_once('/').ok_or_else(|| invalid("it names no database"))?;
        let (user, servers) =
            authority.rsplit_once('@').filter(|(user, _)| !user.is_empty()).ok_or_else(|| {
                invalid("it names no user; write special characters of a password as %XX")
            })?;
        let mut config = Config::new();
        let (user, password) = match user.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (user, None),
        };
        config.user(decode("user", user)?);
        if let Some(password) = password.filter(|password| !password.is_empty()) {
            config.password(decode("password", password)?);
        }
        if database.is_empty() || database.contains('/') {
            return Err(invalid("it names no database"));
        }
        let database = decode("database", database)?;
        config.dbname(&database);
        let places = servers.split(',').map(|server| add_server(&mut config, server));
        let places = places.collect::<Result<Vec<String>, InvalidUrl>>()?;
        let place = format!("postgresql://{}/{database}", places.join(","));
        config.application_name("sandglass");
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        let mut parsed = Self { config, tls: Tls::Off, password_file: None, place };
        parsed.read_parameters(parameters)?;
        Ok(parsed)
    }

    fn read_parameters(&mut self, parameters: &str) -> Result<(), InvalidUrl> {
        let (mut mode, mut roots) = (None, None);
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter
                .split_once('=')
                .ok_or_else(|| invalid("a parameter has no `=` and value"))?;
            let value = decode("a parameter", value)?;
            match name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => roots = Some(PathBuf::from(value)),
                "password_file" => self.password_file = Some(PathBuf::from(value)),
                "application_name" => drop(self.config.application_name(value)),
                _ => {
                    return Err(invalid(
                        "it has a parameter other than sslmode, sslrootcert, password_file and \
                         application_name",
                    ));
                }
            }
        }
        let is_encrypted = match mode.as_deref() {
            Some("disable") => false,
            Some("require" | "verify-full") => true,
            None => roots.is_some() || !self.is_local(),
            Some(_) => {
                return Err(invalid(
                    "sslmode has to be disable, require or verify-full: with other modes, \
                     an attacker could read along",
                ));
            }
        };
        self.config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
        self.tls = if is_encrypted { Tls::Verified { roots } } else { Tls::Off };
        Ok(())
    }

    /// Whether all servers are on this machine.
    fn is_local(&self) -> bool {
        self.config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
            }
        })
    }

    /// Whether the URL contains a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// The file with the password, if the URL names one.
    #[must_use]
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// Uses the password in the environment variable [`PASSWORD_VARIABLE`], if it is set and the URL
    /// neither contains a password nor names a file with it.
    #[must_use]
    pub fn or_environment(self) -> Self {
        match std::env::var_os(PASSWORD_VARIABLE).filter(|password| !password.is_empty()) {
            Some(password) => self.or_password(password.as_encoded_bytes()),
            None => self,
        }
    }

    fn or_password(mut self, password: &[u8]) -> Self {
        if !self.has_password() && self.password_file.is_none() {
            self.config.password(password);
        }
        self
    }

    /// The address for reading, also from a standby.
    pub(crate) fn for_reading(&self) -> Self {
        let mut address = self.clone();
        address.config.target_session_attrs(TargetSessionAttrs::Any);
        address
    }

    /// The servers and the database, without user and password.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }
}

/// Adds `HOST[:PORT]`; returns it without special characters.
fn add_server(config: &mut Config, server: &str) -> Result<String, InvalidUrl> {
    let is_bracketed = server.starts_with('[');
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !is_bracketed || host.ends_with(']') => (host, Some(port)),
        _ => (server, None),
    };
    let port = port.map_or(Some(5432), |port| port.parse::<u16>().ok().filter(|port| *port > 0));
    let port = port.ok_or_else(|| {
        invalid(
            "a port is no number from 1 to 65535; write special characters of a password as %XX",
        )
    })?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = decode("host", host)?;
    if host.is_empty() {
        return Err(invalid("it names no host"));
    }
    config.host(&host).port(port);
    Ok(if is_bracketed { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn decode(what: &str, text: &str) -> Result<String, InvalidUrl> {
    let decoded = percent_decode_str(text).decode_utf8().ok();
    let clean = decoded.filter(|text| !text.chars().any(char::is_control));
    clean.map(String::from).ok_or_else(|| invalid(&format!("its {what} is no printable text")))
}

fn invalid(what: &str) -> InvalidUrl {
    InvalidUrl(what.to_owned())
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("place", &self.place).field("tls", &self.tls).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_names_servers_user_and_database() {
        let address = parse("postgres://ann:p%40ss@db.example:6432,[::1]/main?application_name=x")
            .expect("valid");
        assert_eq!(address.place(), "postgresql://db.example:6432,[::1]:5432/main");
        assert_eq!(address.config.get_user(), Some("ann"));
        assert_eq!(address.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(address.config.get_ports(), [6432, 5432]);
        assert_eq!(address.tls, Tls::Verified { roots: None });
        let socket = parse("postgresql://ann@%2Frun%2Fpg:5433/main").expect("valid");
        assert!(matches!(socket.config.get_hosts(), [Host::Unix(_)]));
    }

    #[test]
    fn other_machines_are_reached_with_tls() {
        let tls = |url: &str| parse(url).expect("valid").tls;
        let (off, on) = (Tls::Off, Tls::Verified { roots: None });
        assert_eq!(tls("postgres://ann@localhost/main"), off);
        assert_eq!(tls("postgres://ann@127.0.0.1/main"), off);
        assert_eq!(tls("postgres://ann@127.0.0.1,db.example/main"), on);
        assert_eq!(tls("postgres://ann@db.example/main?sslmode=disable"), off);
        assert_eq!(tls("postgres://ann@localhost/main?sslmode=require"), on);
        let roots = Some(PathBuf::from("/a b"));
        assert_eq!(
            tls("postgres://ann@localhost/main?sslrootcert=/a%20b"),
            Tls::Verified { roots }
        );
    }

    #[test]
    fn a_password_of_the_url_comes_before_that_of_the_environment() {
        let password = |url: &str| {
            let address = parse(url).expect("valid").or_password(b"env");
            address.config.get_password().map(<[u8]>::to_vec)
        };
        assert_eq!(password("postgres://ann@h/d"), Some(b"env".to_vec()));
        assert_eq!(password("postgres://ann:url@h/d"), Some(b"url".to_vec()));
        assert_eq!(password("postgres://ann@h/d?password_file=/f"), None);
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_text() {
        for (url, why) in [
            ("mysql://ann:secret@h/d", "start with"),
            ("postgres://h/d", "no user"),
            ("postgres://ann:secret@h", "no database"),
            ("postgres://ann:secret@h/", "no database"),
            ("postgres://ann:secret@/d", "no host"),
            ("postgres://ann:secret@h:0/d", "a port"),
            ("postgres://ann:secret/x@h/d", "as %XX"),
            ("postgres://ann:secret/x@y@h/d", "as %XX"),
            ("postgres://ann:secret@h/d?sslmode=prefer", "sslmode"),
            ("postgres://ann:secret@h/d?secret", "no `=`"),
            ("postgres://ann:secret@h/d?secret=1", "a parameter other"),
            ("postgres://ann:secret%ff@h/d", "its password"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let address = parse("postgres://ann:secret@h/d").expect("valid");
        assert!(!format!("{address:?} {:?}", address.config).contains("secret"));
    }
}
