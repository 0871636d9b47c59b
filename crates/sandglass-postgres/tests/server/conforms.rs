//! The suite that every store passes. Each of its facts has a partition of its own.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use sandglass_journal::{Journal, conformance_tests};
use sandglass_model::Partition;
use sandglass_postgres::Database;

use crate::server;

fn new_journal() -> Arc<dyn Journal> {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let database =
        DATABASE.get_or_init(|| server::open(&server::shared().new_database("conformance")));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    database.journal(Partition::new(number).expect("there are fewer facts than partitions"))
}

conformance_tests!(in_postgres, new_journal);
