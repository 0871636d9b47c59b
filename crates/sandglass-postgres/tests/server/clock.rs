//! A database whose clock differs from this machine's.

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Batch, Expected};
use sandglass_model::{Clock as _, Partition, Position, SystemClock};

use crate::server::{self, block};

const DAY_MS: i64 = 86_400_000;

#[test]
fn clocks_that_are_a_day_apart_are_noticed_and_change_nothing() {
    let server = server::shared();
    let address = server.new_database("clock");
    let set = |seconds: i64| server.set_clock("clock", seconds);
    set(0);
    let database = server::open(&address);
    assert_eq!(database.clock_excess_ms(), None);
    let beat = || {
        let database = database.clone();
        assert_eq!(block(async move { database.beat().await }), Ok(Vec::new()));
    };
    beat();
    assert_eq!(database.clock_excess_ms(), None);
    let is_about = |expected: i64| {
        let found = database.clock_excess_ms().unwrap();
        assert!((found - expected).abs() < 60_000, "{found}");
    };
    let entity = session("a");
    let append = |batch: Batch| {
        let journal = database.journal(Partition::of(&entity));
        block(async move { journal.append(batch).await }).unwrap()
    };
    set(-86_400);
    beat();
    is_about(DAY_MS);
    append(creation(&entity));
    set(86_400);
    beat();
    is_about(-DAY_MS);
    // By a process whose clock was a day ahead.
    let mut future = step(&entity, Expected::At(Position(1)), 1);
    future.at = SystemClock::new().wall().after(std::time::Duration::from_secs(86_400));
    append(future);
    assert_eq!(server::open(&address).clock_excess_ms().map(i64::signum), Some(-1), "at once");
    set(0);
    let again = server::open(&address);
    assert_eq!(again.clock_excess_ms(), None);
    // Records that seem to come from the future are followed like any other.
    let journal = again.journal(Partition::of(&entity));
    let next = step(&entity, Expected::At(Position(2)), 2);
    let last = block(async move { journal.append(next).await });
    assert_eq!(last.map(|positions| positions.last), Ok(Position(3)));
}
