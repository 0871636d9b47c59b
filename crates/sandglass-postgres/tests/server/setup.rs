//! Creating and opening databases, and what is wrong with them.

use sandglass_journal::conformance::{batch, creation, ended, recording, session, step};
use sandglass_journal::{Batch, Error, Expected};
use sandglass_model::{DispatchId, Partition, Position};
use sandglass_postgres::{Address, Database, FORMAT, Settings, create, upgrade};

use crate::membership;
use crate::server::{self, Server, block, open_as_usual as open};

fn created(address: &Address) -> Result<(), Error> {
    let address = address.clone();
    block(async move { create(&address).await })
}

fn upgraded(address: &Address) -> Result<(), Error> {
    let address = address.clone();
    block(async move { upgrade(&address).await })
}

#[test]
fn a_schema_is_created_once() {
    let server = server::shared();
    server.psql("postgres", "CREATE DATABASE twice");
    let address = server.address("twice");
    let absent = open(&address).unwrap_err().to_string();
    assert!(
        absent
            .contains("there is no schema `sandglass`: create it with `sandglass journal create`"),
        "{absent}"
    );
    assert!(matches!(upgraded(&address), Err(Error::Foreign { .. })));
    assert_eq!(created(&address), Ok(()));
    let database = open(&address).unwrap();
    let entity = session("a");
    let journal = database.journal(Partition::of(&entity));
    block(async move { journal.append(creation(&entity)).await }).unwrap();
    assert_eq!(created(&address), Ok(()), "nothing is lost");
    assert_eq!(upgraded(&address), Ok(()));
    assert_eq!(server.psql("twice", "SELECT count(*) FROM sandglass.records"), "1");
    // Two processes create it at the same time.
    server.psql("postgres", "CREATE DATABASE racing_creation");
    let address = server.address("racing_creation");
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| created(&address))).collect();
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Ok(())));
    });
}

/// Moves the rows of a journal into the tables of an earlier format: of each table, these columns.
fn downgrade(database: &str, schema: &str, tables: &[(&str, &str)]) {
    let server = server::shared();
    server.psql(database, "ALTER SCHEMA sandglass RENAME TO newer; CREATE SCHEMA sandglass");
    server.psql(database, schema);
    for (table, columns) in tables {
        let sql = format!("INSERT INTO sandglass.{table} SELECT {columns} FROM newer.{table}");
        server.psql(database, &sql);
    }
}

#[test]
fn a_journal_of_format_2_is_upgraded() {
    let server = server::shared();
    let address = server.new_database("older_2");
    let entity = session("a");
    let partition = Partition::of(&entity);
    let former = open(&address).unwrap();
    let (journal, create) = (former.journal(partition), creation(&entity));
    block(async move { journal.append(create).await }).unwrap();
    let hosts = "host, name, version, beats, dead";
    let tables = [
        ("cluster", "one, 2, partitions, hash"),
        ("hosts", hosts),
        ("partitions", "*"),
        ("records", "*"),
        ("entities", "*"),
    ];
    downgrade("older_2", include_str!("format-2.sql"), &tables);
    let error = open(&address).unwrap_err().to_string();
    assert!(error.contains(&format!("has format 2 and this version writes {FORMAT}")), "{error}");
    assert_eq!(upgraded(&address), Ok(()));
    assert_eq!(upgraded(&address), Ok(()), "it is up to date");
    let columns = |schema: &str| {
        let sql = format!(
            "SELECT table_name, column_name, data_type, is_nullable, column_default \
             FROM information_schema.columns WHERE table_schema = '{schema}' ORDER BY 1, 2"
        );
        server.psql("older_2", &sql)
    };
    // Views are not part of the tables that were copied.
    server.psql("older_2", "DROP SCHEMA IF EXISTS other; ALTER SCHEMA newer RENAME TO other");
    assert_eq!(columns("sandglass"), columns("other"), "as one that was created");
    let member = membership::join(&address);
    let read = member.clone();
    let seen = block(async move { read.membership().await }).unwrap();
    let host = seen.host(former.host()).unwrap();
    assert_eq!((host.url.as_deref(), host.reads_format, host.is_draining), (None, 1, false));
    assert!(seen.partitions.iter().all(|it| it.owner == Some(former.host())));
    block(async move { former.close().await });
    membership::claim_all(&member);
    let journal = member.journal(partition);
    block(async move {
        assert_eq!(journal.last().await, Ok(Position(1)));
        journal.append(step(&entity, Expected::At(Position(1)), 1)).await.unwrap();
    });
}

#[test]
fn a_journal_of_format_1_is_upgraded() {
    let server = server::shared();
    let address = server.new_database("older");
    let entity = session("a");
    let partition = Partition::of(&entity);
    let [first, second] = [1, 2].map(|byte| DispatchId::from_bytes([byte; 16]));
    let end_of = |last, dispatch, bytes| {
        let end = batch(&entity, Expected::At(Position(last)), vec![(0, ended(dispatch, 1))]);
        end.with_recordings(vec![recording(dispatch, 1, bytes)])
    };
    let append = |batches: Vec<Batch>| {
        let database = open(&address).unwrap();
        let journal = database.journal(partition);
        block(async move {
            for batch in batches {
                journal.append(batch).await.unwrap();
            }
            let recordings =
                (journal.recording(first, 1).await, journal.recording(second, 1).await);
            database.close().await;
            (recordings.0.unwrap().map(|it| it.len()), recordings.1.unwrap().map(|it| it.len()))
        })
    };
    append(vec![creation(&entity), end_of(1, first, 100_000)]);
    // The same rows in the tables of format 1, in which all recordings were like this one.
    let tables = [
        ("cluster", "one, 1, partitions, hash"),
        ("partitions", "*"),
        ("records", "*"),
        ("entities", "*"),
        ("blobs", "*"),
        ("recordings", "partition, position, dispatch, attempt, hash, checksum"),
    ];
    downgrade("older", include_str!("format-1.sql"), &tables);
    let error = open(&address).unwrap_err().to_string();
    let advice = format!("has format 1 and this version writes {FORMAT}: upgrade it");
    assert!(error.contains(&advice), "{error}");
    assert_eq!(created(&address).unwrap_err().to_string(), error, "only an upgrade changes it");
    assert_eq!(upgraded(&address), Ok(()));
    assert_eq!(upgraded(&address), Ok(()), "it is up to date");
    let found = append(vec![end_of(2, second, 100)]);
    assert_eq!(found, (Some(100_000), Some(100)));
    let inline = "SELECT position, length(bytes) FROM sandglass.recordings ORDER BY position";
    assert_eq!(server.psql("older", inline), "2|\n3|100");
}

#[test]
fn the_views_have_the_columns_of_sqlites() {
    let address = server::shared().new_database("views");
    let database = server::open(&address);
    let entity = session("a");
    let dispatch = DispatchId::from_bytes([7; 16]);
    let records = vec![
        (0, sandglass_journal::conformance::created()),
        (1, sandglass_journal::conformance::transition("Go")),
        (1, sandglass_journal::conformance::dispatched(dispatch, 1)),
        (1, ended(dispatch, 1)),
    ];
    let expected = Expected::None;
    let batch = batch(&entity, expected, records);
    let journal = database.journal(Partition::of(&entity));
    block(async move { journal.append(batch).await }).unwrap();
    let server = server::shared();
    let log =
        server.psql("views", "SELECT position, at, entity, sequence, kind FROM sandglass.log");
    assert!(log.starts_with("1|2023-11-14T22:13:20.123Z|Session/a|0|created\n2|"), "{log}");
    let sqlite = include_str!("../../../sandglass-journal/src/sqlite/views.sql");
    for view in ["log", "transitions", "dispatches", "endings"] {
        let sql = sqlite.split_once(&format!("CREATE VIEW {view} AS")).unwrap().1;
        let columns = sql.split_once("FROM").unwrap().0.trim().trim_start_matches("SELECT");
        let names = columns.split(",\n").flat_map(|line| {
            // The name behind AS, or plain names.
            match line.rsplit_once(" AS ").or_else(|| line.rsplit_once("\n               AS ")) {
                Some((_, name)) => vec![name.trim()],
                None => line.split(',').map(str::trim).collect(),
            }
        });
        let names: Vec<&str> = names.collect();
        let found = server.psql(
            "views",
            &format!(
                "SELECT string_agg(column_name, ' ' ORDER BY ordinal_position) \
                 FROM information_schema.columns \
                 WHERE table_schema = 'sandglass' AND table_name = '{view}'"
            ),
        );
        assert_eq!(found, format!("partition {}", names.join(" ")), "{view}");
        server.psql("views", &format!("SELECT * FROM sandglass.{view}"));
    }
    let action = server.psql("views", "SELECT action, cause FROM sandglass.transitions");
    assert_eq!(action, "Go|requested");
}

#[test]
fn what_is_no_journal_of_this_version_is_refused() {
    let server = server::shared();
    server.new_database("newer");
    let sql = format!("UPDATE sandglass.cluster SET format = {}", FORMAT + 1);
    server.psql("newer", &sql);
    let address = server.address("newer");
    for error in [open(&address).unwrap_err(), created(&address).unwrap_err()] {
        assert!(matches!(error, Error::Newer { supported: FORMAT, .. }), "{error:?}");
    }
    server.psql("postgres", "CREATE DATABASE another");
    server.psql("another", "CREATE SCHEMA sandglass; CREATE TABLE sandglass.records (x integer)");
    let address = server.address("another");
    for error in [open(&address).unwrap_err(), created(&address).unwrap_err()] {
        assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
        assert!(error.to_string().contains("contains records but no `cluster`"), "{error}");
    }
    server.new_database("other_hash");
    server.psql("other_hash", "UPDATE sandglass.cluster SET partitions = 32");
    let error = open(&server.address("other_hash")).unwrap_err();
    assert!(error.to_string().contains("distributed over partitions in another way"), "{error}");
}

#[test]
fn a_role_without_privileges_is_named_what_it_lacks() {
    let server = server::shared();
    server.new_database("rights");
    server.psql("rights", "CREATE ROLE app LOGIN");
    let url = format!("postgresql://app@127.0.0.1:{}/rights", server.port);
    let address = Address::parse(&url).unwrap();
    let why = |address: &Address| open(address).unwrap_err().to_string();
    assert!(why(&address).contains("permission denied for schema sandglass"), "{}", why(&address));
    server.psql("rights", "GRANT USAGE ON SCHEMA sandglass TO app");
    server.psql("rights", "GRANT SELECT ON ALL TABLES IN SCHEMA sandglass TO app");
    assert!(why(&address).contains("the role may not INSERT in sandglass."), "{}", why(&address));
    let rights = "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sandglass TO app";
    server.psql("rights", rights);
    assert!(open(&address).is_ok());
    server.psql("postgres", "CREATE DATABASE bare");
    let url = format!("postgresql://app@127.0.0.1:{}/bare", server.port);
    let error = created(&Address::parse(&url).unwrap()).unwrap_err().to_string();
    assert!(error.contains("permission denied for database bare (42501)"), "{error}");
    server.psql("rights", "UPDATE sandglass.cluster SET format = 1");
    let error = upgraded(&address).unwrap_err().to_string();
    assert!(error.contains("42501); run it as the owner of the schema"), "{error}");
}

#[test]
fn a_reader_that_is_refused_states_the_servers_reason() {
    let server = server::shared();
    server.new_database("refused");
    server.psql(
        "refused",
        "CREATE ROLE few LOGIN; GRANT USAGE ON SCHEMA sandglass TO few; \
         GRANT SELECT ON ALL TABLES IN SCHEMA sandglass TO few",
    );
    let url = format!("postgresql://few@127.0.0.1:{}/refused", server.port);
    let address = Address::parse(&url).unwrap();
    let opening = async move { Database::open_read_only(&address, Settings::default()).await };
    let database = block(opening).unwrap();
    server.psql("refused", "ALTER ROLE few CONNECTION LIMIT 0");
    let journal = database.journal(Partition::of(&session("a")));
    let error = block(async move { journal.last().await }).unwrap_err().to_string();
    assert!(error.contains("(53300); raise max_connections"), "{error}");
    assert!(!error.contains("127.0.0.1"), "{error}");
}

#[test]
fn a_database_that_cannot_be_used_is_an_error_that_says_why() {
    let server = Server::start(&["wal_level = replica"]);
    let why = |address: &Address| open(address).unwrap_err().to_string();
    let absent = why(&server.address("absent"));
    assert!(absent.contains("database \"absent\" does not exist (3D000)"), "{absent}");
    server.new_database("main");
    let standby = Server::standby_of(&server, "standby");
    let recovering = why(&standby.address("main"));
    let advice = "database does not allow writes; the server is a standby or read-only";
    assert!(recovering.contains(advice), "{recovering}");
    let nobody = format!("postgresql://sandglass@127.0.0.1:{}/main", server::free_port());
    let nobody = why(&Address::parse(&nobody).unwrap());
    assert!(nobody.contains("Connection refused"), "{nobody}");
    assert!(nobody.ends_with("check that the server runs and can be reached"), "{nobody}");
}
