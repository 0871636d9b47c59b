//! Connections: how they are made, how long they may take, and what the server says on them besides
//! results.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use deadpool_postgres::Connect;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row};

use crate::address::Address;
use crate::dial::{DialError, dial};
use crate::fault::{Fate, Fault};
use crate::limit::within;
use crate::tls::Encryption;

/// A parameter of a statement, and its type. Statements have no names, so poolers can pass them on.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Makes connections to one database.
#[derive(Clone)]
pub(crate) struct Connector {
    address: Address,
    encryption: Encryption,
    /// Where connections are served, whatever runtime a caller uses.
    runtime: Handle,
    limit: Duration,
}

impl Connector {
    /// Connects within `limit` for each attempt.
    pub(crate) fn new(address: &Address, limit: Duration) -> Result<Self, Fault> {
        let encryption =
            Encryption::new(&address.tls).map_err(|what| Fault { fate: Fate::Refused, what })?;
        let mut address = address.clone();
        address
            .config
            .connect_timeout(limit)
            .keepalives_idle(limit)
            .keepalives_interval(limit / 2)
            .keepalives_retries(2)
            .tcp_user_timeout(limit * 2);
        Ok(Self { address, encryption, runtime: Handle::current(), limit })
    }

    pub(crate) fn place(&self) -> &str {
        self.address.place()
    }

    pub(crate) fn address(&self) -> &Config {
        &self.address.config
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The configuration with the present password.
    fn config(&self) -> Result<Config, Fault> {
        let mut config = self.address.config.clone();
        if let Some(file) = &self.address.password_file {
            let password = std::fs::read_to_string(file).map_err(|error| {
                let what = format!("reading the password in `{}` failed: {error}", file.display());
                Fault { fate: Fate::Refused, what }
            })?;
            config.password(password.trim_end_matches(['\n', '\r']));
        }
        Ok(config)
    }

    async fn dial(&self, warned: Arc<AtomicBool>) -> Result<(Client, JoinHandle<()>), Fault> {
        let config = self.config()?;
        let (client, mut connection) = dial(&config, &self.encryption, self.limit).await?;
        let task = self.runtime.spawn(poll_fn(move |context| {
            // Ends when the client is dropped or the connection is lost; the client has the error.
            while let Some(Ok(message)) = ready!(connection.poll_message(context)) {
                if let AsyncMessage::Notice(notice) = message
                    // Not `severity`, which is in the language of the server.
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    tracing::warn!(code = notice.code().code(), "the database warns: {notice}");
                    warned.store(true, Ordering::Release);
                }
            }
            Poll::Ready(())
        }));
        Ok((client, task))
    }

    pub(crate) async fn connect(&self) -> Result<Link, Fault> {
        let warned = Arc::new(AtomicBool::new(false));
        let (client, task) = self.dial(Arc::clone(&warned)).await?;
        Ok(Link {
            client,
            warned,
            task,
            connector: self.clone(),
            is_pending: AtomicBool::new(false),
        })
    }
}

impl Connector {
    /// The connection that is kept in `link`, made anew if it is lost.
    pub(crate) async fn renew<'a>(&self, link: &'a mut Option<Link>) -> Result<&'a Link, Fault> {
        if link.as_ref().is_none_or(Link::is_closed) {
            *link = Some(self.connect().await?);
        }
        link.as_ref().ok_or_else(Fault::no_connection)
    }
}

type Connected<'a> = Pin<
    Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + 'a>,
>;

/// For the pool of the readers.
impl Connect for Connector {
    fn connect(&self, config: &Config) -> Connected<'_> {
        // Without its password, the server refuses it.
        let config = self.config().unwrap_or_else(|_| config.clone());
        Box::pin(async move {
            let (client, connection) = match dial(&config, &self.encryption, self.limit).await {
                Ok(dialed) => dialed,
                Err(DialError::Refused(error)) => return Err(error),
                // The pool's own time limit is the error.
                Err(DialError::Silent(_)) => pending().await,
            };
            let task = self.runtime.spawn(async move {
                // The client has the error.
                let _ = connection.await;
            });
            Ok((client, task))
        })
    }
}

/// A connection of its own, which ends when it is dropped.
pub(crate) struct Link {
    client: Client,
    warned: Arc<AtomicBool>,
    task: JoinHandle<()>,
    connector: Connector,
    /// Whether the server may be executing a statement that is to be canceled with this connection.
    is_pending: AtomicBool,
}

impl Link {
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Sends one statement. If the result is of unknown fate, the connection is not used again.
    pub(crate) async fn query(
        &self,
        limit: Duration,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Fault> {
        // A connection that has just been made may warn, too, for example of another collation.
        self.warned.store(false, Ordering::Release);
        let rows = query(&self.client, limit, sql, parameters).await?;
        self.unless_warned(rows)
    }

    fn unless_warned(&self, rows: Vec<Row>) -> Result<Vec<Row>, Fault> {
        if self.warned.load(Ordering::Acquire) { Err(Fault::warning()) } else { Ok(rows) }
    }

    /// As [`Link::query`], but if it has no result in time, or the connection is dropped meanwhile, the
    /// statement is canceled. A server does not notice that its client has gone while a statement waits,
    /// and would execute it whenever that wait ends.
    pub(crate) async fn query_or_cancel(
        &self,
        limit: Duration,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Fault> {
        self.warned.store(false, Ordering::Release);
        self.is_pending.store(true, Ordering::Release);
        let mut work = pin!(self.client.query_typed(sql, parameters));
        let rows = match within(limit, &mut work).await {
            Some(rows) => rows,
            None => {
                // Spawned, so that it is sent even if this is dropped meanwhile.
                let _ = self.connector.runtime.spawn(self.cancel()).await;
                match within(self.connector.limit, &mut work).await {
                    Some(rows) => rows,
                    None => return Err(Fault::timeout(limit)),
                }
            }
        };
        // A lost connection says nothing about the statement.
        self.is_pending.store(self.is_closed(), Ordering::Release);
        self.unless_warned(rows?)
    }

    /// Requests the server to cancel the present statement, on a connection like this one. It may be too
    /// late for that, and PgBouncer drops the request if its client closes the connection at once, as
    /// the library does: what must not happen late has a time limit in its statement, too.
    fn cancel(&self) -> impl Future<Output = ()> + Send + 'static {
        let (token, encryption) = (self.client.cancel_token(), self.connector.encryption.clone());
        let limit = self.connector.limit;
        async move {
            let canceled = within(limit, token.cancel_query(encryption)).await;
            if !matches!(canceled, Some(Ok(()))) {
                tracing::debug!("a statement without a result could not be canceled");
            }
        }
    }

    /// Sends several statements without parameters, which are one transaction.
    pub(crate) async fn execute_all(&self, limit: Duration, sql: &str) -> Result<(), Fault> {
        let done = within(limit, self.client.batch_execute(sql)).await;
        Ok(done.ok_or_else(|| Fault::timeout(limit))??)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if *self.is_pending.get_mut() {
            self.connector.runtime.spawn(self.cancel());
        }
        self.task.abort();
    }
}

/// Sends one statement, and waits for its rows at most for `limit`.
pub(crate) async fn query(
    client: &Client,
    limit: Duration,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Fault> {
    let rows = within(limit, client.query_typed(sql, parameters)).await;
    Ok(rows.ok_or_else(|| Fault::timeout(limit))??)
}
