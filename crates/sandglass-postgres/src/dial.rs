//! Connects to the first address of a database that responds. Each attempt has a time limit of its own, so
//! that the next address is tried if one accepts connections and then does not respond.

use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Connection, Socket};

use crate::fault::Fault;
use crate::limit::within;
use crate::tls::{Encrypted, Encryption};

/// Most addresses that are tried: more than a cluster of databases has.
const ADDRESSES_MAX: usize = 16;

/// A connection, which has to be polled.
pub(crate) type Dialed = (Client, Connection<Socket, Encrypted<Socket>>);

/// Why there is no connection: what is wrong with the last address.
#[derive(Debug)]
pub(crate) enum DialError {
    Refused(tokio_postgres::Error),
    /// It did not respond within this time.
    Silent(Duration),
}

impl From<DialError> for Fault {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Refused(error) => error.into(),
            DialError::Silent(limit) => Self::timeout(limit),
        }
    }
}

/// Connects to the servers of `all` in their order, each within `limit`. The last one may take as long again,
/// because there is no other.
pub(crate) async fn dial(
    all: &Config,
    encryption: &Encryption,
    limit: Duration,
) -> Result<Dialed, DialError> {
    let mut addresses = addresses(all, limit).await.into_iter().peekable();
    let mut last = DialError::Silent(limit);
    while let Some(one) = addresses.next() {
        let limit = if addresses.peek().is_some() { limit } else { limit * 2 };
        match within(limit, one.connect(encryption.clone())).await {
            Some(Ok(dialed)) => return Ok(dialed),
            Some(Err(error)) => last = DialError::Refused(error),
            None => last = DialError::Silent(limit),
        }
    }
    Err(last)
}

/// One configuration for each address of each server.
async fn addresses(all: &Config, limit: Duration) -> Vec<Config> {
    let mut addresses = Vec::new();
    let ports = all.get_ports();
    for (index, host) in all.get_hosts().iter().enumerate() {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let found: Vec<IpAddr> = match host {
            Host::Tcp(name) => {
                let found = within(limit, tokio::net::lookup_host((&**name, port))).await;
                let found = found.and_then(Result::ok).into_iter().flatten();
                found.map(|address| address.ip()).collect()
            }
            Host::Unix(_) => Vec::new(),
        };
        if found.is_empty() {
            // Connecting states the reason.
            addresses.push(only(all, host, port, None));
        }
        addresses.extend(found.into_iter().map(|address| only(all, host, port, Some(address))));
    }
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

/// `all` with one server, at one of its addresses.
fn only(all: &Config, host: &Host, port: u16, address: Option<IpAddr>) -> Config {
    let mut one = Config::new();
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(database) = all.get_dbname() {
        one.dbname(database);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(limit) = all.get_connect_timeout() {
        one.connect_timeout(*limit);
    }
    if let Some(limit) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*limit);
    }
    if let Some(interval) = all.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = all.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .target_session_attrs(all.get_target_session_attrs())
        .port(port);
    match host {
        Host::Tcp(name) => one.host(name),
        Host::Unix(folder) => one.host_path(folder),
    };
    if let Some(address) = address {
        one.hostaddr(address);
    }
    one
}
