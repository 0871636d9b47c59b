//! A start after a kill: until the last entity can take an action.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sandglass_journal::{Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::Object;
use sandglass_runtime::Runtime;

use crate::history::{ENTITIES, RECORDS, SPEC, name};

pub(crate) async fn run(path: &Path) {
    println!("Recovery of {RECORDS} records\n");
    println!("| what | s |");
    println!("|---|---|");
    let begun = Instant::now();
    let opened = SqliteJournal::open(path, Settings::default()).expect("a journal");
    println!("| the journal is opened, and found whole | {:.1} |", begun.elapsed().as_secs_f64());
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let builder = Runtime::builder(Arc::new(opened.journal)).specs([spec]);
    let runtime = builder.build().await.expect("sound");
    println!("| all entities are back | {:.1} |", begun.elapsed().as_secs_f64());
    let last = name(ENTITIES - 1);
    runtime.send(&last, "Leave", Object::new()).await.expect("taken");
    println!("| the last one has taken an action | {:.1} |\n", begun.elapsed().as_secs_f64());
    runtime.shutdown(std::time::Duration::from_secs(5)).await;
}
