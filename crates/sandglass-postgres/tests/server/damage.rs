//! Rows that were edited by hand are found.

use std::sync::Arc;

use sandglass_journal::conformance::{batch, creation, ended, recording, session, step};
use sandglass_journal::{Entry, Error, Expected, Journal, Rest, Resting};
use sandglass_model::{
    DispatchId, EntityRef, Event, Partition, Position, Recorded, RulesVersion, SpecDigest, WallTime,
};
use sandglass_postgres::{Database, Settings};

use crate::load::read_all;
use crate::membership;
use crate::server::{self, block};

/// A database with five records of one entity, a recording and a snapshot.
fn damaged_by(name: &str, sql: &str) -> (Database, Partition, Arc<dyn Journal>) {
    let server = server::shared();
    let address = server.new_database(name);
    let database = server::open(&address);
    let (entity, dispatch) = (session("a"), DispatchId::from_bytes([1; 16]));
    let partition = Partition::of(&entity);
    let journal = database.journal(partition);
    block({
        let journal = Arc::clone(&journal);
        async move {
            let snapshot = Some("snapshot".to_owned());
            journal.append(creation(&entity).with_snapshot(snapshot)).await.unwrap();
            for at in 1..=3 {
                journal.append(step(&entity, Expected::At(Position(at)), at)).await.unwrap();
            }
            let mut end = ended(dispatch, 1);
            if let Event::Ended(ended) = &mut end {
                ended.recording = Some(Recorded::Bytes(2_000_000));
            }
            let end = batch(&entity, Expected::At(Position(4)), vec![(3, end)]);
            let end = end.with_recordings(vec![recording(dispatch, 1, 2_000_000)]);
            journal.append(end).await.unwrap();
        }
    });
    server.psql(name, sql);
    (database, partition, journal)
}

#[test]
fn an_edited_column_of_a_record_is_found() {
    let (database, partition, journal) = damaged_by("edited", "SELECT 1");
    let server = server::shared();
    let (opened, entity) = (database.clone(), session("a"));
    let intact = block(async move { read_all(&opened, partition).await });
    assert_eq!(intact.len(), 5);
    for (column, edited) in [
        ("body", "replace(body, 'Go', 'No')"),
        ("at_ms", "at_ms + 1"),
        ("batch", "batch + 1"),
        ("epoch", "epoch + 1"),
        ("sequence", "sequence + 1"),
        ("kind", "'signal'"),
        ("dispatch", "7"),
        ("entity", "NULL"),
        ("checksum", "'\\x00'"),
    ] {
        let table = "sandglass.records WHERE position = 3";
        server.psql("edited", &format!("CREATE TABLE kept AS SELECT * FROM {table}"));
        let edit = format!("UPDATE sandglass.records SET {column} = {edited} WHERE position = 3");
        server.psql("edited", &edit);
        let opened = database.clone();
        let found = block(async move { read_all(&opened, partition).await });
        assert!(matches!(found[2], Entry::Damaged { position: Position(3), .. }), "{column}");
        assert_eq!(found[..2], intact[..2]);
        assert_eq!(found[3..], intact[3..]);
        server.psql(
            "edited",
            "DELETE FROM sandglass.records WHERE position = 3; \
             INSERT INTO sandglass.records SELECT * FROM kept; DROP TABLE kept",
        );
    }
    server.psql("edited", "UPDATE sandglass.entities SET id = 'b'");
    let found = block(async move { read_all(&database, partition).await });
    assert!(found.iter().all(|entry| entry.damage().is_some()), "{found:?}");
    let gone = block(async move { journal.read_entity(entity, Position(0), 9).await });
    assert_eq!(gone.unwrap().entries, []);
}

#[test]
fn a_record_that_was_deleted_is_missing() {
    let delete = "DELETE FROM sandglass.records WHERE position IN (2, 3, 5)";
    let (database, partition, journal) = damaged_by("deleted", delete);
    let opened = database.clone();
    let found = block(async move { read_all(&opened, partition).await });
    let places: Vec<_> =
        found.iter().map(|it| (it.position().0, it.places(), it.damage().is_some())).collect();
    assert_eq!(places, [(1, 1, false), (2, 2, true), (4, 1, false), (5, 1, true)]);
    // The record before the next one is gone, so nothing is written behind it.
    let next = step(&session("a"), Expected::At(Position(5)), 4);
    let refused = block(async move { journal.append(next).await });
    let Err(Error::Disowned { what }) = refused else { panic!("{refused:?}") };
    assert!(what.contains("lost 1 records"), "{what}");
    assert_eq!(database.counts().lost_records, 1);
}

#[test]
fn a_record_that_was_added_is_not_written_over() {
    let add = "INSERT INTO sandglass.records SELECT partition, 6, 6, epoch, at_ms, entity, sequence, \
               kind, dispatch, body, checksum FROM sandglass.records WHERE position = 5";
    let (database, _, journal) = damaged_by("added", add);
    let next = step(&session("a"), Expected::At(Position(5)), 4);
    let refused = block(async move { journal.append(next).await });
    let Err(Error::Disowned { what }) = refused else { panic!("{refused:?}") };
    assert!(what.contains("that its owner did not write"), "{what}");
    assert_eq!(database.counts().lost_records, 0);
}

#[test]
fn edited_recordings_snapshots_and_ranges_are_not_used() {
    let edit = "UPDATE sandglass.blobs SET bytes = '\\x00' WHERE chunk = 1; \
                UPDATE sandglass.snapshots SET body = 'another'";
    let (_database, partition, journal) = damaged_by("blobs", edit);
    let dispatch = DispatchId::from_bytes([1; 16]);
    let (read, entity) = (Arc::clone(&journal), session("a"));
    block(async move {
        let recorded = read.recording(dispatch, 1).await;
        assert!(matches!(recorded, Err(Error::Damaged { .. })), "{recorded:?}");
        assert_eq!(read.snapshot(entity.clone()).await, Ok(None));
        assert_eq!(read.prune(vec![(entity, Position(5))]).await, Ok(vec![5]));
    });
    server::shared().psql("blobs", "UPDATE sandglass.pruned SET last = 4");
    let found = block(async move { journal.read(Position(0), 9).await }).unwrap().entries;
    assert_eq!(found, [Entry::Missing { first: Position(1), last: Position(5) }], "{partition}");
}

#[test]
fn recordings_without_a_record_are_swept() {
    let (first, _, _) = damaged_by("swept", "SELECT 1");
    let server = server::shared();
    let orphan = "INSERT INTO sandglass.blobs SELECT sha256('x'), chunk, 1, 'x' \
                  FROM generate_series(0, 2) AS chunk";
    server.psql("swept", orphan);
    drop(first);
    let address = server.address("swept");
    let mut settings = Settings::default();
    settings.orphans_kept = std::time::Duration::ZERO;
    block(async move {
        let database = Database::open(&address, settings).await.unwrap();
        assert_eq!(database.sweep().await, Ok(0), "found, and kept for a while");
        assert_eq!(database.sweep().await, Ok(1));
        assert_eq!(database.sweep().await, Ok(0));
        let journal = database.journal(Partition::of(&session("a")));
        let kept = journal.recording(DispatchId::from_bytes([1; 16]), 1).await.unwrap();
        assert_eq!(kept.map(|body| body.len()), Some(2_000_000));
    });
    assert_eq!(server.psql("swept", "SELECT count(*) FROM sandglass.blobs WHERE bytes = 'x'"), "0");
}

/// What a check finds, as `TABLE PARTITION/POSITION: WHAT`.
fn checked(database: &Database) -> Vec<String> {
    let mut check = database.check();
    block(async move {
        let mut found = Vec::new();
        while let Some(page) = check.next().await.unwrap() {
            found.extend(page.flaws.into_iter().map(|flaw| {
                let partition = flaw.partition.map_or(-1, |it| i16::from(it.number()));
                let position = flaw.position.map_or(0, |it| it.0);
                format!("{} {partition}/{position}: {}", flaw.table, flaw.what)
            }));
        }
        found
    })
}

#[test]
fn a_check_finds_edited_rows_of_every_table() {
    let (database, partition, journal) = damaged_by("checked", "SELECT 1");
    let server = server::shared();
    let sql = |sql: &str| server.psql("checked", sql);
    let elsewhere = |name: &EntityRef| Partition::of(name) != partition;
    let other = ["b", "c", "d"].map(session).into_iter().find(elsewhere).unwrap();
    let q = Partition::of(&other).number();
    let pruned = database.journal(Partition::of(&other));
    block(async move {
        let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
        let wake_at = Some(WallTime::from_millis(1_000));
        let rest = Rest { wake_at, spec, is_listed: false };
        let note = Resting { entity: session("a"), last: Position(5), rest };
        journal.rest(vec![note]).await.unwrap();
        pruned.append(creation(&other)).await.unwrap();
        assert_eq!(pruned.prune(vec![(other, Position(1))]).await, Ok(vec![1]));
    });
    assert_eq!(checked(&database), Vec::<String>::new());
    let p = partition.number();
    let flawed = |edit: &str, table: &str, place: &str| {
        let tables =
            ["partitions", "records", "entities", "snapshots", "pruned", "recordings", "blobs"];
        let each = |sql: fn(&str) -> String| tables.map(sql).join("");
        let keep = each(|it| format!("CREATE TABLE kept_{it} AS SELECT * FROM sandglass.{it};"));
        sql(&(keep + edit));
        let found = checked(&database);
        // A place is the whole one, unless it is with a part of the text.
        let due = format!("{table} {place}{}", if place.contains(':') { "" } else { ": " });
        assert!(found.iter().any(|flaw| flaw.starts_with(&due)), "{edit}: {found:?}");
        sql(&each(|it| {
            format!(
                "DELETE FROM sandglass.{it}; \
                 INSERT INTO sandglass.{it} SELECT * FROM kept_{it}; DROP TABLE kept_{it};"
            )
        }));
    };
    let (end, start) = (format!("{p}/5"), format!("{p}/1"));
    let row = |table: &str| format!("{table} WHERE partition = {p}");
    flawed(
        "UPDATE sandglass.records SET at_ms = at_ms + 1 WHERE position = 3",
        "records",
        &format!("{p}/3"),
    );
    flawed(
        &format!("DELETE FROM sandglass.{} AND position = 2", row("records")),
        "records",
        &format!("{p}/2"),
    );
    for (column, edited) in [
        ("due", "NULL"),
        ("due", "2000"),
        ("rests_at", "NULL"),
        ("rests_at", "4"),
        ("wake_at", "2000"),
        ("is_listed", "true"),
        ("spec", "NULL"),
        ("spec", "'\\x00'"),
        ("checksum", "NULL"),
        ("id", "'x'"),
        ("type", "''"),
    ] {
        flawed(&format!("UPDATE sandglass.entities SET {column} = {edited}"), "entities", &start);
    }
    let awake = "UPDATE sandglass.entities SET rests_at = NULL, due = ";
    flawed(&format!("{awake} NULL"), "entities", &start);
    let lost = format!("DELETE FROM sandglass.{} AND position > 3", row("records"));
    flawed(
        &lost,
        "records",
        &format!("{p}/5: records of {} after position 3 are missing", session("a")),
    );
    flawed("UPDATE sandglass.entities SET entity = 2", "entities", &format!("{p}/2"));
    flawed("DELETE FROM sandglass.entities", "records", &start);
    for (column, edited) in
        [("body", "'another'"), ("position", "2"), ("checksum", "'\\x00'"), ("entity", "2")]
    {
        let place = if column == "entity" { format!("{p}/2") } else { start.clone() };
        flawed(&format!("UPDATE sandglass.snapshots SET {column} = {edited}"), "snapshots", &place);
    }
    for (column, edited) in
        [("hash", "'\\x00'"), ("attempt", "2"), ("dispatch", "'x'"), ("checksum", "'\\x00'")]
    {
        flawed(&format!("UPDATE sandglass.recordings SET {column} = {edited}"), "recordings", &end);
    }
    flawed("UPDATE sandglass.recordings SET position = 4", "recordings", &format!("{p}/4"));
    flawed("UPDATE sandglass.recordings SET partition = 99", "recordings", "-1/5");
    flawed("DELETE FROM sandglass.recordings", "recordings", &end);
    flawed(
        &format!("DELETE FROM sandglass.{} AND position = 5", row("records")),
        "recordings",
        &end,
    );
    flawed("UPDATE sandglass.blobs SET bytes = '\\x00' WHERE chunk = 1", "blobs", &end);
    flawed("UPDATE sandglass.blobs SET bytes = bytes || bytes WHERE chunk = 0", "blobs", &end);
    flawed("UPDATE sandglass.blobs SET hash = '\\x00'", "blobs", "-1/0");
    flawed("DELETE FROM sandglass.blobs", "recordings", &end);
    for chunk in [0, 1] {
        flawed(&format!("DELETE FROM sandglass.blobs WHERE chunk = {chunk}"), "blobs", &end);
    }
    let gone = format!("{q}/1");
    flawed("UPDATE sandglass.pruned SET last = 2", "pruned", &gone);
    flawed("DELETE FROM sandglass.pruned", "records", &gone);
    let lower = format!("UPDATE sandglass.partitions SET floor = 0 WHERE partition = {q}");
    flawed(&lower, "pruned", &gone);
    let before = format!("UPDATE sandglass.partitions SET epoch = 0 WHERE partition = {p}");
    flawed(&before, "partitions", &format!("{p}/0"));
    flawed(
        &format!("DELETE FROM sandglass.{}", row("partitions")),
        "partitions",
        &format!("{p}/0"),
    );
    flawed(
        "DELETE FROM sandglass.partitions",
        "partitions",
        "-1/0: the rows of all partitions are missing",
    );
    assert_eq!(checked(&database), Vec::<String>::new());
}

#[test]
fn an_edited_row_of_hosts_or_partitions_is_found_and_ends_no_lease() {
    let server = server::shared();
    let address = server.new_database("edited_hosts");
    let member = membership::join(&address);
    membership::claim_all(&member);
    let sql = |sql: &str| server.psql("edited_hosts", sql);
    let host = "INSERT INTO sandglass.hosts (host, name, version, beats, dead, url, ttl_ms)";
    sql(&format!("{host} VALUES ('by hand', 'x', '1', 7, false, 'http://x', 5000)"));
    let negative = "00000000000000000000000000000001";
    sql(&format!("{host} VALUES ('{negative}', 'x', '1', -7, false, 'http://x', 5000)"));
    sql("UPDATE sandglass.partitions SET owner = 'nobody' WHERE partition = 3");
    let flaws = checked(&member);
    for expected in [
        "hosts -1/0: the row of `by hand`: `by hand` is no id of a host".to_owned(),
        format!("hosts -1/0: the row of `{negative}`: `beats` is -7, which is negative"),
        "partitions -1/0: the row of partition 3: `nobody` is no id of a host".to_owned(),
    ] {
        assert!(flaws.contains(&expected), "{expected}: {flaws:?}");
    }
    let beaten = member.clone();
    let seen = block(async move { beaten.beat_as_member().await }).unwrap().unwrap();
    assert_eq!(seen.hosts.len(), 1, "{:?}", seen.hosts);
    assert_eq!(seen.partitions.len(), 64);
    let third = Partition::new(3).unwrap();
    let free = seen.partitions.iter().find(|one| one.partition == third).unwrap();
    assert_eq!(free.owner, None);
    // It can be claimed, and is whole then.
    let (epoch, claimer) = (free.epoch, member.clone());
    let claimed = block(async move { claimer.claim(&[(third, epoch)]).await });
    assert_eq!(claimed, Ok(vec![third]));
}
