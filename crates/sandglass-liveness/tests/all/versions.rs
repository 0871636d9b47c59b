//! Going over to another version of a spec: what fits, and that a replay knows.

use std::sync::Arc;

use sandglass_liveness::{Input, Refusal, Replay, Spec, change_spec};

use sandglass_model::{Cause, Event, Object, Position, Record, Sequence, StopCause, WallTime};
use serde_json::json;

use crate::session::{Life, SESSION, completed};
use crate::sessions::{end_killed, of};

fn version(source: &str) -> Arc<Spec> {
    let parsed = Spec::parse(source);
    Arc::new(parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics)))
}

#[test]
fn only_what_has_a_place_in_the_new_version_goes_over() {
    let with = |from: &str, to: &str| SESSION.replace(from, to);
    // No effect sets a counter to a text.
    let set = r#"effect = [{ type = "set", var = "note", param = "text" }]"#;
    let text = "type = \"string\"\ninitial = \"none\"";
    let counted = with(set, "").replace(text, "type = \"counter\"");
    let cases = [
        (SESSION.to_owned(), Some("no other version")),
        (with("after_seconds = 300", "after_seconds = 30"), None),
        (with("Idle", "Resting"), Some("it has no state `Idle`")),
        (with("name = \"Session\"", "name = \"Order\""), Some("no other version")),
        (with("\"note\"", "\"remark\""), Some("it has no variable `note`")),
        (with("Later", "Sometime"), None),
        (counted, Some("its variable `note` is of another type")),
    ];
    for (source, refused) in cases {
        let life = Life::of(SESSION);
        let decided = change_spec(&life.spec, life.entity(), &version(&source));
        match (decided, refused) {
            (Ok(events), None) => assert_eq!(events.len(), 1),
            (Err(Refusal::SpecUnfit { what }), Some(refused)) => {
                assert!(what.contains(refused), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_handler_in_flight_or_a_scheduled_action_that_is_gone_holds_it_back() {
    let newer = SESSION.replace("after_seconds = 300", "after_seconds = 30");
    let mut life = Life::of(SESSION);
    life.act("ProcessToolCalls").expect("taken");
    let decided = change_spec(&life.spec, life.entity(), &version(&newer));
    assert!(decided.is_err(), "{decided:?}");

    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    life.end(dispatch, completed(Some("Finish"))).expect("in flight");
    let decided = change_spec(&life.spec, life.entity(), &version(&newer));
    assert!(decided.expect_err("it has ended").to_string().contains("ended in `Done`"));

    let mut life = Life::of(SESSION);
    life.act("Later").expect("taken");
    let entity = life.entity.expect("created");
    assert!(change_spec(&life.spec, &entity, &version(&newer)).is_ok());
    let renamed = version(&SESSION.replace("ProcessToolCalls", "Process"));
    let refusal =
        change_spec(&life.spec, &entity, &renamed).expect_err("its schedule would be lost");
    assert!(refusal.to_string().contains("`ProcessToolCalls`, which is scheduled"), "{refusal}");
}

#[test]
fn a_handler_that_the_next_run_dispatches_anew_needs_its_integration() {
    let source = format!("{SESSION}\n[limits]\nrun_timeout = \"1h\"\n");
    let mut life = of(&source);
    life.start();
    life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
    end_killed(&mut life, Cause::Shutdown);
    let refused = |source: &str| {
        let decided = change_spec(&life.spec, life.entity(), &version(source));
        decided.err().map(|refusal| refusal.to_string()).unwrap_or_default()
    };
    assert_eq!(refused(&source.replace("after_seconds = 300", "after_seconds = 30")), "");
    let renamed = refused(&source.replace("run_tools", "run_them"));
    assert!(
        renamed.contains("lacks integration `run_tools`, which a held handler needs"),
        "{renamed}"
    );
}

#[test]
fn a_replay_decides_the_change_again_and_goes_on_by_the_new_version() {
    let mut life = Life::of(SESSION);
    let more = format!(
        "{SESSION}[[state]]\nname = \"mood\"\ntype = \"string\"\ninitial = \"calm\"\n\
         [[action]]\nname = \"New\"\nfrom = [\"Idle\"]\n"
    );
    let newer = version(&more);
    let registered = newer.registered();
    let record = |life: &Life, entity, event| Record {
        position: Position(life.log.len() as u64 + 1),
        at: WallTime::from_millis(life.now),
        entity,
        sequence: Sequence(0),
        event,
    };
    life.log.push(record(&life, None, registered));
    let entity = life.entity.as_mut().expect("created");
    let [changed] = &change_spec(&life.spec, entity, &newer).expect("it fits")[..] else {
        panic!("one record")
    };
    entity.apply(&life.spec, changed, WallTime::from_millis(life.now));
    assert_eq!((entity.spec, &entity.variables["mood"]), (newer.digest, &json!("calm")));
    life.log.push(record(&life, Some(Life::name()), changed.clone()));
    life.spec = newer;
    life.act("New").expect("the new version takes it");

    let replayed = |log: &[Record]| {
        let mut replay = Replay::new();
        log.iter().for_each(|record| replay.feed(record));
        replay.finish().divergences
    };
    assert_eq!(replayed(&life.log), []);
    for record in &mut life.log {
        if let Event::SpecChanged { variables, .. } = &mut record.event {
            *variables = Object::from([("mood".to_owned(), json!("cross"))]);
        }
    }
    assert_eq!(replayed(&life.log)[0].what, "spec_changed.variables");
}
