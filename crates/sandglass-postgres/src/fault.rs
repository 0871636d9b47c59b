//! What an error of the server means for the statement that was sent: from the SQLSTATE, never from
//! the text. Only the advice for people may depend on a text.

use std::error::Error as _;

use sandglass_journal::Error;
use sandglass_journal::store::printable;
use tokio_postgres::error::{Severity, SqlState};

/// What is known of a statement that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It changed nothing, and may work if it is sent again.
    Retry,
    /// It changed nothing.
    Refused,
    /// It changed nothing, because one of its recordings is there already.
    Recorded,
    /// It may have changed something, or still change it.
    Unknown,
}

/// A failure, and what is known of the statement.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) fate: Fate,
    /// What failed and what to do.
    pub(crate) what: String,
}

impl Fault {
    /// A statement had no result within its time limit.
    pub(crate) fn timeout(limit: std::time::Duration) -> Self {
        let what = format!(
            "the database did not respond within {} s; check the server and the network",
            limit.as_secs_f32()
        );
        Self { fate: Fate::Unknown, what }
    }

    /// The server confirmed the statement and warned of it.
    pub(crate) fn warning() -> Self {
        let what = "the server stopped waiting for its standby before the records were there; \
                    check the standby"
            .to_owned();
        Self { fate: Fate::Unknown, what }
    }

    /// There is no connection, so nothing was sent.
    pub(crate) fn no_connection() -> Self {
        Self { fate: Fate::Refused, what: format!("the connection was lost; {CHECK}") }
    }

    pub(crate) fn unavailable(&self) -> Error {
        Error::Unavailable { what: self.what.clone() }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(refused) = error.as_db_error() else {
            let mut what = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                what = format!("{what}: {cause}");
                source = cause.source();
            }
            if let Some(advice) = client_advice(&error, &what) {
                what = format!("{what}; {advice}");
            }
            return Self { fate: Fate::Unknown, what: printable(&what) };
        };
        let code = refused.code();
        let (message, advice) = (printable(&refused.message()), advice(code, refused.message()));
        let what = format!("the database reports: {message} ({}); {advice}", code.code());
        // The connection ends with these, perhaps after the commit was written.
        let is_end = matches!(refused.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        let fate = match fate(code) {
            _ if is_end => Fate::Unknown,
            // The only constraint that another append of the owner itself can meet.
            Fate::Unknown if refused.constraint() == Some(RECORDED_ONCE) => Fate::Recorded,
            fate => fate,
        };
        Self { fate, what }
    }
}

/// The index by which each attempt of a dispatch has one recording.
const RECORDED_ONCE: &str = "recordings_of_dispatch";

pub(crate) const CHECK: &str = "check that the server runs and can be reached";

fn fate(code: &SqlState) -> Fate {
    match code.code() {
        "40001" | "40P01" => Fate::Retry,
        // The outcome of a commit is not known, or the connection ends. A duplicate key means that
        // the journal contains records that its owner does not know.
        "40003" | "57P01" | "57P02" | "57P03" | "23505" => Fate::Unknown,
        code if code.starts_with("08") => Fate::Unknown,
        _ => Fate::Refused,
    }
}

/// What to do about an error that is not from the server, if there is something. The library states the
/// reasons of its own only as texts.
fn client_advice(error: &tokio_postgres::Error, what: &str) -> Option<&'static str> {
    if what.contains("database does not allow writes") {
        return Some(
            "the server is a standby or read-only, or `default_transaction_read_only` is set \
             for the database or the role: name the primary in the URL, or change that setting",
        );
    }
    if what.contains("password missing") {
        return Some(
            "the server requires one: write it into the URL, name a file with it by \
             `password_file` in the URL, or set PGPASSWORD",
        );
    }
    if what.contains("server does not support TLS") {
        return Some(
            "enable TLS on the server, or use `sslmode=disable` in the URL if nobody can \
             read along",
        );
    }
    if what.contains("invalid peer certificate") {
        return Some(
            "name the certificates to trust by `sslrootcert`, or connect by the name in the \
             server's certificate",
        );
    }
    let is_io = error.source().is_some_and(|cause| cause.is::<std::io::Error>());
    (is_io || error.is_closed()).then_some(CHECK)
}

/// `message` is in the language of the server; those in English have more precise advice.
fn advice(code: &SqlState, message: &str) -> &'static str {
    match code.code() {
        // Only statements that create or upgrade the schema need the owner.
        "42501" if message.starts_with("must be owner") => "run it as the owner of the schema",
        "53100" => "make room on the server's disk",
        "53300" => "raise max_connections, or close other connections",
        "25006" => "the server is in recovery or read-only: connect to the primary",
        "28000" | "28P01" => "check the user and the password",
        "3D000" => "create the database, or correct its name in the URL",
        "42501" => "grant the role the privileges that docs/postgres.md lists",
        "3F000" | "42P01" | "42703" => {
            "create or upgrade the schema first: `sandglass journal create` or `upgrade`"
        }
        "55P03" => "another statement holds the rows: see pg_stat_activity, and try again",
        "57014" => "it took too long, or an operator canceled it",
        "57P01" | "57P02" => "the server ended the connection: try again",
        "57P03" => "the server starts or stops: try again",
        code if code.starts_with("08") => CHECK,
        _ => "see the log of the server",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_state_what_is_known() {
        let fate = |code| fate(&SqlState::from_code(code));
        for (code, known) in [
            ("40001", Fate::Retry),
            ("40P01", Fate::Retry),
            ("40003", Fate::Unknown),
            ("08006", Fate::Unknown),
            ("08P01", Fate::Unknown),
            ("57P01", Fate::Unknown),
            ("57P03", Fate::Unknown),
            ("57014", Fate::Refused),
            ("53100", Fate::Refused),
            ("25006", Fate::Refused),
        ] {
            assert_eq!(fate(code), known, "{code}");
        }
    }
}
