//! Journals of hosts, as other commands read them.

use std::ffi::OsStr;

use serde_json::{Value, json};

use crate::binary::sandglass;
use crate::host::{Host, PACKS, Setup};
use crate::log::Run;

#[test]
fn a_journal_of_runs_replays_with_the_same_decisions_and_results() {
    let host = Setup::new().packs(&PACKS).start();
    let workflows = host.get("/.well-known/openwop").expect(200)["fixtures"].clone();
    let workflows = workflows.as_array().expect("a list").iter().filter_map(Value::as_str);
    let runs: Vec<_> =
        workflows.map(|workflow| (workflow.to_owned(), started(&host, workflow))).collect();
    let mut ended = Vec::new();
    for (workflow, run) in &runs {
        match workflow.as_str() {
            "approval" | "approval-by-response" => {
                run.until_waiting();
                run.answer("ask", &json!({ "action": "accept" })).expect(200);
            }
            "loop-ask-user" => {
                run.until_waiting();
                run.answer("supervisor", &json!("go on")).expect(200);
            }
            "spin" => {
                run.until_started("spin", 1);
                run.cancel(&json!({})).expect(200);
            }
            _ => {}
        }
        let last = run.finished().last().clone();
        ended.push(last["payload"]["error"]["code"].as_str().unwrap_or("none").to_owned());
        host.replay(&run.id).finished();
    }
    for expected in ["wasm_memory_exceeded", "wasm_execution_timeout", "wasm_fuel_exhausted"] {
        assert!(ended.iter().any(|code| code == expected), "{ended:?}");
    }
    let setup = host.stop();
    let (journal, packs) = (setup.folder.path("runs.db"), setup.folder.path("packs"));
    let decided = replayed(&[&journal]);
    assert!(decided["timeouts"].as_u64() >= Some(1), "{decided}");
    let invoked = replayed(&[&journal, &"--guests", &packs]);
    assert!(invoked["guests"]["replayed"].as_u64() >= Some(1), "{invoked}");
    assert_eq!(invoked["guests"]["reasons"], json!([]), "each invocation can be had again");
}

/// A run with all that any of the workflows needs, which waits for no long.
fn started<'a>(host: &'a Host, workflow: &str) -> Run<'a> {
    let inputs = json!({ "nonce": "any", "payload": {}, "delayMs": 50 });
    host.run_with(&json!({ "workflowId": workflow, "inputs": inputs }))
}

/// What a replay says, which finds no difference.
#[track_caller]
fn replayed(arguments: &[&dyn AsRef<OsStr>]) -> Value {
    let all = [&[&"replay" as &dyn AsRef<OsStr>, &"--json"], arguments].concat();
    let said = sandglass(&all).exits(0);
    serde_json::from_str(&said.out).expect("JSON")
}
