//! `sandglass journal prune` and a daemon that prunes by itself, on journals with many
//! entities that have ended: killed in the middle, refused, and after a start.

mod binary;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use binary::{Folder, Running, sandglass, until};
use sandglass_journal::{Journal, Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object};
use sandglass_runtime::Runtime;

const DOOR: &str = r#"
[automaton]
name = "Door"
states = ["Open", "Shut"]
initial = "Open"
terminal = ["Shut"]
allow_indefinite_states = ["Open"]

[[action]]
name = "Shut"
from = ["Open"]
to = "Shut"
"#;
/// Doors in the journal: several transactions of the command's.
const DOORS: usize = 300;
/// Every so many of them stays open.
const OPEN_ONE_IN: usize = 10;

/// A folder with the spec, and a journal of doors beside it.
fn doors() -> Folder {
    let folder = Folder::new();
    folder.write("door.ioa.toml", DOOR);
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    threads.expect("threads").block_on(async {
        let opened = SqliteJournal::open(folder.path("runs.db"), Settings::default());
        let journal = Arc::new(opened.expect("a new file").journal);
        let spec = Spec::parse(DOOR).spec.expect("sound");
        let builder = Runtime::builder(Arc::clone(&journal) as _).specs([spec]);
        let runtime = builder.build().await.expect("empty");
        for number in 0..DOORS {
            let door = EntityRef::new("Door", format!("{number}")).expect("a name");
            runtime.create(door.clone()).await.expect("new");
            if number % OPEN_ONE_IN != 0 {
                runtime.send(&door, "Shut", Object::new()).await.expect("taken");
            }
        }
        runtime.shutdown(Duration::ZERO).await;
        journal.close().await;
    });
    folder
}

/// The records of each door.
fn records(journal: &Path) -> BTreeMap<String, usize> {
    let mut records = BTreeMap::new();
    for line in sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines() {
        if let Some(entity) = line["entity"].as_str() {
            *records.entry(entity.to_owned()).or_default() += 1;
        }
    }
    records
}

#[test]
fn a_killed_prune_leaves_each_entity_complete_or_absent() {
    let folder = doors();
    let journal = folder.path("runs.db");
    let before = records(&journal);
    let mut pause = Duration::ZERO;
    loop {
        let mut pruning = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .args(["journal", "prune", "--keep", "0"])
            .arg(&journal)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        #[allow(clippy::disallowed_methods, reason = "when it is killed is what is tried")]
        std::thread::sleep(pause);
        pruning.kill().expect("it was started");
        let ended = pruning.wait().expect("it ends");
        let left = records(&journal);
        assert!(left.iter().all(|(door, records)| before[door] == *records), "{left:?}");
        sandglass(&[&"replay", &journal]).exits(0).says(" 0 divergences");
        if ended.success() {
            let open = DOORS.div_ceil(OPEN_ONE_IN);
            assert_eq!(left.len(), open, "those that are open stay");
            return;
        }
        // Later each time, so that every part of it comes to be cut off.
        pause += Duration::from_millis(3);
    }
}

#[test]
fn a_daemon_prunes_by_itself_and_excludes_other_pruners() {
    let folder = doors();
    let journal = folder.path("runs.db");
    let config = "[journal]\npath = \"runs.db\"\nkeep = 5\n";
    let config = folder.write("sandglass.toml", config);
    let specs = folder.path(".");
    let mut up = Running::start(&[
        &"up",
        &"--specs",
        &specs,
        &"--listen",
        &"127.0.0.1:0",
        &"--config",
        &config,
    ]);
    up.line_with("listening on http://");
    sandglass(&[&"journal", &"prune", &journal, &"--keep", &"0"]).exits(2).says("in use");
    let kept = DOORS.div_ceil(OPEN_ONE_IN) + 5;
    until(|| records(&journal).len() == kept);
    up.signal("TERM");
    assert!(up.ended().success());
    sandglass(&[&"replay", &journal]).exits(0).says(" 0 divergences");
}
