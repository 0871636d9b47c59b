//! The schema: created, upgraded and checked. `schema.sql` is the newest format.

use std::path::PathBuf;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::Partition;
use tokio_postgres::types::Type;

use crate::address::Address;
use crate::fault::Fault;
use crate::hosts::RECORDS_FORMAT;
use crate::link::{Connector, Link};
use crate::settings::Settings;

/// The format that this version writes.
pub const FORMAT: u32 = 3;

/// What leads to each format from the one before it.
const UPGRADES: [(u32, &str); 3] =
    [(2, include_str!("upgrade-2.sql")), (3, include_str!("upgrade-3.sql")), (3, DEPLOYMENTS)];

/// The tables of deployments.
const DEPLOYMENTS: &str = include_str!("deployments.sql");

/// How long an upgrade may take: it reads whole tables.
const UPGRADE_LIMIT: Duration = Duration::from_secs(3_600);

/// How [`Partition::of`] hashes names.
pub(crate) const HASH: &str = "sha256 of affinity or id";
/// What is in its place while another journal is copied into the database.
pub(crate) const INCOMPLETE: &str = "incomplete copy";

const TABLES: [&str; 9] = [
    "cluster",
    "hosts",
    "partitions",
    "records",
    "entities",
    "snapshots",
    "pruned",
    "recordings",
    "blobs",
];
/// Those that format 3 has besides.
const TABLES_3: [&str; 3] = ["deployments", "deployment_files", "agreed"];

/// Creates the schema `sandglass` with its tables in the database, unless it is there already. One of an
/// earlier version is not changed; [`upgrade`] does that.
///
/// # Errors
/// [`Error::Unavailable`], for example without the privileges, or if the schema is of an earlier version;
/// [`Error::Foreign`] if something else is in its place; [`Error::Newer`].
pub async fn create(address: &Address) -> Result<(), Error> {
    let settings = Settings::default();
    let (connector, link) = connect(address, &settings).await?;
    let place = connector.place();
    for _ in 0..2 {
        if let State::Present { .. } = find(&link, &settings, place).await? {
            return check_newest(&link, &settings, place).await;
        }
        let partitions: Vec<String> =
            Partition::all().map(|partition| format!("({partition}, 0, NULL, 0)")).collect();
        let count = Partition::COUNT;
        // One transaction. If another process creates it at the same time, one of them fails and
        // finds it the second time.
        let sql = format!(
            "CREATE SCHEMA IF NOT EXISTS sandglass; {} {DEPLOYMENTS} {} \
             INSERT INTO sandglass.cluster VALUES (1, {FORMAT}, {count}, '{HASH}'); \
             INSERT INTO sandglass.partitions VALUES {};",
            include_str!("schema.sql"),
            include_str!("views.sql"),
            partitions.join(", ")
        );
        match link.execute_all(settings.statement_limit, &sql).await {
            Ok(()) => return Ok(()),
            Err(fault) if find(&link, &settings, place).await? == State::Absent => {
                return Err(fault.unavailable());
            }
            Err(_) => {}
        }
    }
    Err(Error::Unavailable { what: "another process changes the schema: try again".to_owned() })
}

/// Upgrades the schema of an earlier version, and makes its views anew, without the privileges that were
/// granted on them. Without effect on one that is up to date.
///
/// # Errors
/// [`Error::Unavailable`], for example if the role does not own the tables; [`Error::Foreign`] if there is
/// no schema, or something else is in its place; [`Error::Newer`].
pub async fn upgrade(address: &Address) -> Result<(), Error> {
    let settings = Settings::default();
    let (connector, link) = connect(address, &settings).await?;
    upgrade_on(&link, &settings, connector.place()).await
}

async fn connect(address: &Address, settings: &Settings) -> Result<(Connector, Link), Error> {
    let connector = Connector::new(address, settings.connect_limit);
    let connector = connector.map_err(|fault| fault.unavailable())?;
    let link = connector.connect().await.map_err(|fault| fault.unavailable())?;
    Ok((connector, link))
}

async fn upgrade_on(link: &Link, settings: &Settings, place: &str) -> Result<(), Error> {
    let present = check_format(link, settings, place).await?;
    if present == FORMAT {
        return Ok(());
    }
    let steps = UPGRADES.iter().filter(|(format, _)| *format > present).map(|(_, sql)| *sql);
    // One transaction, which waits only briefly for locks, because appends wait behind it then. If
    // another process upgrades at the same time, the second one finds its steps done, or fails with the
    // first statement if the format is newer by then.
    let sql = format!(
        "SELECT set_config('lock_timeout', '5s', true); \
         UPDATE sandglass.cluster SET format = {FORMAT} / (format <= {FORMAT})::integer; {} {}",
        steps.collect::<String>(),
        include_str!("views.sql")
    );
    match link.execute_all(UPGRADE_LIMIT, &sql).await {
        Ok(()) => Ok(()),
        Err(fault) => match check_format(link, settings, place).await? {
            FORMAT => Ok(()),
            _ => Err(fault.unavailable()),
        },
    }
}

/// Whether the schema is there and can be used by this version and this role.
pub(crate) async fn check(link: &Link, settings: &Settings, place: &str) -> Result<(), Error> {
    check_with(link, settings, place, &["SELECT", "INSERT", "UPDATE", "DELETE"]).await
}

/// As [`check`], for a role that only reads.
pub(crate) async fn check_readable(
    link: &Link,
    settings: &Settings,
    place: &str,
) -> Result<(), Error> {
    check_with(link, settings, place, &["SELECT"]).await
}

async fn check_with(
    link: &Link,
    settings: &Settings,
    place: &str,
    privileges: &[&str],
) -> Result<(), Error> {
    check_newest(link, settings, place).await?;
    let sql = "SELECT t.name, p.privilege FROM unnest($1::text[]) AS t(name) \
               CROSS JOIN unnest($2::text[]) AS p(privilege) \
               WHERE NOT has_table_privilege('sandglass.' || t.name, p.privilege)";
    let all = TABLES.iter().chain(&TABLES_3).copied();
    let tables = all.filter(|table| *table != "cluster").collect::<Vec<_>>();
    let parameters: [crate::link::Parameter<'_>; 2] =
        [(&tables, Type::TEXT_ARRAY), (&privileges, Type::TEXT_ARRAY)];
    let missing = query(link, settings, sql, &parameters).await?;
    if let Some(row) = missing.first() {
        let what = format!(
            "the role may not {} in sandglass.{}: grant it the privileges that docs/postgres.md lists",
            text(row, 1),
            text(row, 0)
        );
        return Err(Error::Unavailable { what });
    }
    check_records(link, settings, place).await
}

/// Errors if records are written in a format that this version does not read.
async fn check_records(link: &Link, settings: &Settings, place: &str) -> Result<(), Error> {
    let sql = "SELECT writes_format FROM sandglass.agreed";
    let rows = query(link, settings, sql, &[]).await?;
    let format: i32 = rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
    let format = u32::try_from(format).unwrap_or_default();
    if format > RECORDS_FORMAT {
        let what = format!(
            "the records in {place} are written in format {format}, and this version reads up to \
             {RECORDS_FORMAT}: start a newer version"
        );
        return Err(Error::Unavailable { what });
    }
    Ok(())
}

/// Errors if the schema is absent, or has another format than this version writes.
async fn check_newest(link: &Link, settings: &Settings, place: &str) -> Result<(), Error> {
    let format = check_format(link, settings, place).await?;
    if format < FORMAT {
        let what = format!(
            "the journal in {place} has format {format} and this version writes {FORMAT}: \
             upgrade it with `sandglass journal upgrade`"
        );
        return Err(Error::Unavailable { what });
    }
    Ok(())
}

/// What is where the schema belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Present { format: u32 },
}

async fn check_format(link: &Link, settings: &Settings, place: &str) -> Result<u32, Error> {
    match find(link, settings, place).await? {
        State::Absent => Err(foreign(
            place,
            "there is no schema `sandglass`: create it with `sandglass journal create`",
        )),
        State::Present { format } if format > FORMAT => {
            let path = PathBuf::from(place);
            Err(Error::Newer { path, found: format, supported: FORMAT })
        }
        State::Present { format } => Ok(format),
    }
}

async fn find(link: &Link, settings: &Settings, place: &str) -> Result<State, Error> {
    let sql = "SELECT (SELECT current_setting('server_version_num')::integer), c.relname::text \
               FROM (SELECT 1) AS one LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
               ON n.oid = c.relnamespace AND n.nspname = 'sandglass' AND c.relkind <> 'i') ON true";
    let rows = query(link, settings, sql, &[]).await?;
    let version: i32 = rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
    if version < 150_000 {
        let what = format!("the server of {place} is older than PostgreSQL 15: upgrade it");
        return Err(Error::Unavailable { what });
    }
    let names: Vec<&str> = rows.iter().filter_map(|row| row.try_get(1).ok()).collect();
    if names.is_empty() {
        return Ok(State::Absent);
    }
    let require = |tables: &[&str]| match tables.iter().find(|table| !names.contains(table)) {
        Some(absent) => {
            let what = format!("its schema `sandglass` contains {} but no `{absent}`", names[0]);
            Err(foreign(place, what))
        }
        None => Ok(()),
    };
    require(&TABLES)?;
    let sql = "SELECT format, partitions, hash FROM sandglass.cluster";
    let rows = query(link, settings, sql, &[]).await?;
    let read = |row: &tokio_postgres::Row| -> Option<(i32, i16, String)> {
        Some((row.try_get(0).ok()?, row.try_get(1).ok()?, row.try_get(2).ok()?))
    };
    match rows.first().and_then(read) {
        Some((format, partitions, hash)) => {
            let format = u32::try_from(format).unwrap_or_default();
            // A newer format may divide and hash in another way.
            let is_ours = partitions == i16::from(Partition::COUNT) && hash == HASH;
            if is_ours || format > FORMAT {
                require(if format < 3 { &[] } else { &TABLES_3 })?;
                Ok(State::Present { format })
            } else if hash == INCOMPLETE {
                Err(foreign(
                    place,
                    "a copy into it is running, or did not finish: then remove it with \
                     `DROP SCHEMA sandglass CASCADE`, create it and copy again",
                ))
            } else {
                Err(foreign(place, "its names are distributed over partitions in another way"))
            }
        }
        None => Err(foreign(place, "its table `sandglass.cluster` states no format")),
    }
}

async fn query(
    link: &Link,
    settings: &Settings,
    sql: &str,
    parameters: &[crate::link::Parameter<'_>],
) -> Result<Vec<tokio_postgres::Row>, Error> {
    let rows = link.query(settings.statement_limit, sql, parameters).await;
    rows.map_err(|fault: Fault| fault.unavailable())
}

fn text(row: &tokio_postgres::Row, column: usize) -> String {
    row.try_get(column).unwrap_or_default()
}

fn foreign(place: &str, what: impl Into<String>) -> Error {
    Error::Foreign { path: PathBuf::from(place), what: what.into() }
}
