//! The suite that every store passes. Each of its facts has a partition of its own.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use sandglass_journal::{Journal, conformance_tests};
use sandglass_model::Partition;
use sandglass_postgres::Database;

use crate::{membership, server};

fn new_journal() -> Arc<dyn Journal> {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let database =
        DATABASE.get_or_init(|| server::open(&server::shared().new_database("conformance")));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    database.journal(Partition::new(number).expect("there are fewer facts than partitions"))
}

/// A journal of a member of a cluster.
fn new_claimed_journal() -> Arc<dyn Journal> {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let database = DATABASE.get_or_init(|| {
        let database = membership::join(&server::shared().new_database("member_conformance"));
        membership::claim_all(&database);
        database
    });
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    database.journal(Partition::new(number).expect("there are fewer facts than partitions"))
}

conformance_tests!(in_postgres, new_journal);
conformance_tests!(in_postgres_of_a_member, new_claimed_journal);
