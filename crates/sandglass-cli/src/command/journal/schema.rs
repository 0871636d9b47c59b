//! `sandglass journal create` and `upgrade`: the tables of a database.

use sandglass_postgres::FORMAT;
use sandglass_source::printable;

use crate::exit::Exit;
use crate::journal_place::Place;
use crate::open_database::explain;
use crate::terminal::Output;
use crate::threads;

/// Creates an empty journal in a database
///
/// Creates the schema `sandglass` with its tables; the database itself must exist. Without effect if the
/// journal exists. The role needs the privilege CREATE on the database; docs/postgres.md lists what the
/// role of a daemon needs.
///
/// Exit code: 0 it exists, 2 it cannot be created.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sandglass journal create postgresql://owner@db.example/runs\n  \
    sandglass journal create env:RUNS_URL"
)]
pub(crate) struct CreateArguments {
    /// The database: postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "DATABASE")]
    database: Place,
}

/// Upgrades the journal in a database to the format of this version
///
/// Without effect if it has that format; the views are made again. The role has to own the tables.
///
/// Exit code: 0 it has the format of this version, 2 it cannot be upgraded.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sandglass journal upgrade postgresql://owner@db.example/runs\n  \
    sandglass journal upgrade env:RUNS_URL"
)]
pub(crate) struct UpgradeArguments {
    /// The database: postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "DATABASE")]
    database: Place,
}

pub(super) fn create(arguments: &CreateArguments) -> anyhow::Result<Exit> {
    let address = arguments.database.database()?;
    let created = threads::start(Some(1))?.block_on(sandglass_postgres::create(&address));
    created.map_err(|error| explain(&address, error))?;
    print(&arguments.database)
}

pub(super) fn upgrade(arguments: &UpgradeArguments) -> anyhow::Result<Exit> {
    let address = arguments.database.database()?;
    let upgraded = threads::start(Some(1))?.block_on(sandglass_postgres::upgrade(&address));
    upgraded.map_err(|error| explain(&address, error))?;
    print(&arguments.database)
}

fn print(database: &Place) -> anyhow::Result<Exit> {
    let text = format!("`{database}` has a journal of format {FORMAT}");
    Output::new().line(printable(&text))?;
    Ok(Exit::Ok)
}
