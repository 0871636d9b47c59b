//! What is sent over the wire: passwords, TLS, poolers, and how many statements.

use std::fs;

use sandglass_journal::conformance::{creation, session};
use sandglass_journal::{Error, Positions};
use sandglass_model::Partition;
use sandglass_postgres::{Address, Database};

use crate::load;
use crate::server::{self, Server, block};

fn open(url: &str) -> Result<Database, Error> {
    server::open_as_usual(&Address::parse(url).unwrap())
}

fn append(database: &Database, id: &str) -> Result<Positions, Error> {
    let entity = session(id);
    let journal = database.journal(Partition::of(&entity));
    block(async move { journal.append(creation(&entity)).await })
}

#[test]
fn a_password_is_read_from_the_url_or_a_file() {
    let server = Server::start(&[]);
    server.new_database("main");
    server.psql("main", "ALTER ROLE sandglass PASSWORD 'p@ss'");
    server.require_passwords("host all all 127.0.0.1/32 scram-sha-256");
    let (port, folder) = (server.port, tempfile::tempdir().unwrap());
    let file = folder.path().join("password");
    fs::write(&file, "p@ss\n").unwrap();
    assert!(open(&format!("postgresql://sandglass:p%40ss@127.0.0.1:{port}/main")).is_ok());
    let by_file =
        format!("postgresql://sandglass@127.0.0.1:{port}/main?password_file={}", file.display());
    let database = open(&by_file).unwrap();
    assert!(append(&database, "a").is_ok());
    let entity = session("a");
    let journal = database.journal(Partition::of(&entity));
    assert_eq!(block(async move { journal.last().await }).unwrap().0, 1, "readers know it, too");
    let wrong = open(&format!("postgresql://sandglass:secret@127.0.0.1:{port}/main")).unwrap_err();
    let wrong = wrong.to_string();
    assert!(
        wrong.contains("28P01") && wrong.contains("check the user and the password"),
        "{wrong}"
    );
    assert!(!wrong.contains("secret"), "{wrong}");
    let missing = open(&format!("postgresql://sandglass@127.0.0.1:{port}/main")).unwrap_err();
    let missing = missing.to_string();
    assert!(missing.ends_with("by `password_file` in the URL, or set PGPASSWORD"), "{missing}");
    fs::remove_file(&file).unwrap();
    let absent = open(&by_file).unwrap_err().to_string();
    assert!(absent.contains("reading the password in `"), "{absent}");
}

#[test]
fn tls_checks_the_server() {
    let server = Server::start(&[]);
    server.new_database("main");
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let roots = folder.path().join("roots.pem");
    fs::write(&roots, made.cert.pem()).unwrap();
    server.encrypt(&made.cert.pem(), &made.signing_key.serialize_pem());
    let (port, roots) = (server.port, roots.display().to_string());
    let url = |host: &str, rest: &str| format!("postgresql://sandglass@{host}:{port}/main?{rest}");
    let database = open(&url("localhost", &format!("sslrootcert={roots}"))).unwrap();
    assert!(append(&database, "a").is_ok());
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE datname = 'main' AND application_name = 'sandglass'";
    assert_eq!(server.psql("main", encrypted), "t");
    let why = |url: String| open(&url).unwrap_err().to_string();
    let unknown = why(url("localhost", "sslmode=require"));
    assert!(unknown.contains("TLS handshake") && unknown.contains("certificate"), "{unknown}");
    let named = why(url("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={roots}")));
    assert!(named.contains("not valid for name"), "{named}");
    let absent = why(url("localhost", "sslrootcert=/nowhere"));
    assert!(absent.contains("reading the certificates in `/nowhere` failed"), "{absent}");
    let plain = server::shared();
    let refused = why(format!(
        "postgresql://sandglass@localhost:{}/postgres?sslrootcert={roots}",
        plain.port
    ));
    assert!(refused.contains("server does not support TLS; enable TLS on the server"), "{refused}");
}

#[test]
fn a_pooler_in_transaction_mode_passes_statements_on() {
    let server = Server::start(&[]);
    server.new_database("main");
    let port = server.pooler("main");
    let database = open(&format!("postgresql://sandglass@127.0.0.1:{port}/main")).unwrap();
    let load = load::start(&database, "client", 8);
    load.wait_for(300);
    server.end_connections("main");
    load.wait_for(300);
    let all = load.stop();
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    load::check(&database, all);
}

/// What 64 callers cost the server.
#[test]
fn appends_of_many_callers_share_statements() {
    let server = Server::start(&[]);
    let address = server.new_database("costs");
    server.psql("costs", "CREATE EXTENSION pg_stat_statements");
    let database = server::open(&address);
    let load = load::start(&database, "client", 64);
    load.wait_for(1_000);
    let statements = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements \
                      JOIN pg_database d ON d.oid = dbid WHERE datname = 'costs' \
                      AND query LIKE '%sandglass%' AND query NOT LIKE '%pg_stat%'";
    let wal = "SELECT pg_current_wal_lsn() - '0/0'";
    let number = |sql: &str| server.psql("costs", sql).parse::<f64>().unwrap();
    let before = (number(statements), number(wal), database.counts().batches);
    load.wait_for(5_000);
    let after = (number(statements), number(wal), database.counts().batches);
    load.stop();
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let batches = (after.2 - before.2) as f64;
    let (statements, wal) = ((after.0 - before.0) / batches, (after.1 - before.1) / batches);
    println!("{batches} batches: {statements:.3} statements and {wal:.0} B of WAL for each");
    assert!(statements < 0.2, "{statements} statements for each batch");
    assert!(wal < 4_000.0, "{wal} bytes of WAL for each batch");
}
