//! `sandglass play`: scenarios of every kind of step, kills included.

mod binary;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;

use binary::{Folder, Running, fixture, sandglass, with_nobody_reading};

#[test]
fn the_incident_is_solved_also_when_the_process_is_killed() {
    let folder = Folder::new();
    let journal = folder.path("incident.journal");
    let said = sandglass(&[&"play", &fixture("incident"), &"--journal", &journal]).exits(0);
    for span in ["host_http_call", "guest"] {
        let killed = |line: &str| line.contains("killed after 5.") && line.contains(span);
        assert!(said.out.lines().any(killed), "no kill in {span} in:\n{}", said.out);
    }
    for line in [
        "HandlerTimedOut    Executing -> TimedOut",
        "lost with its process; takes HandlerInterrupted",
        "2 scenarios",
        "all held",
    ] {
        assert!(said.out.contains(line), "no `{line}` in:\n{}", said.out);
    }
    sandglass(&[&"replay", &journal]).exits(0).says("6 dispatches, 2 timeouts, 0 divergences");
}

#[test]
fn handlers_in_c_and_assemblyscript_end_as_documented() {
    for (language, died_in) in
        [("c", "wasi_snapshot_preview1.poll_oneoff"), ("assemblyscript", "guest")]
    {
        let handlers = fixture(&format!("languages/{language}/handlers"));
        let killed = format!(" s in {died_in}; takes HandlerTimedOut");
        sandglass(&[&"play", &handlers]).exits(0).says("all held").says(&killed);
    }
}

#[test]
fn parameters_set_variables_and_invariants_hold_also_after_a_kill() {
    let folder = Folder::new();
    folder.write(
        "order.ioa.toml",
        r#"
        [automaton]
        name = "Order"
        states = ["Draft", "Paid"]
        initial = "Draft"
        allow_indefinite_states = ["Draft"]
        [[state]]
        name = "items"
        type = "counter"
        [[state]]
        name = "tags"
        type = "list"
        [[action]]
        name = "Edit"
        from = ["Draft"]
        params = ["items", "address", "tag"]
        effect = "append(tags, params.tag)"
        [[action]]
        name = "Pay"
        from = ["Draft"]
        to = "Paid"
        guard = ["items > 0 && len(tags) < 2", { type = "list_contains", var = "tags", value = "vip" }]
        [[invariant]]
        name = "final"
        when = ["Paid"]
        assert = "no_further_transitions"
        [[field_invariant]]
        name = "addressed"
        message = "a paid order needs an address"
        assert = "status in ['Paid'] => address != null"
        "#,
    );
    folder.write(
        "scenario.toml",
        r#"
        name = "an order"
        [[step]]
        send = "Edit"
        entity = "Order/a"
        params = { items = "many" }
        expect_refused = "parameter `items` is a string, and variable `items` is a counter"
        [[step]]
        send = "Edit"
        entity = "Order/a"
        params = { items = 2, tag = "vip" }
        [[step]]
        restart = "kill"
        [[step]]
        send = "Pay"
        entity = "Order/a"
        expect_refused = "would break the invariant `addressed` in state `Paid`: a paid order needs an address"
        [[step]]
        send = "Edit"
        entity = "Order/a"
        params = { address = "at home" }
        [[step]]
        restart = "kill"
        [[step]]
        send = "Pay"
        entity = "Order/a"
        [[step]]
        expect_state = "Paid"
        entity = "Order/a"
        "#,
    );
    sandglass(&[&"play", &folder.path("scenario.toml")]).exits(0).says("all held");
}

#[test]
fn a_kill_is_survived_and_an_orderly_stop_too() {
    let folder = Folder::with_lamp_of(
        5,
        r#"
        name = "a lamp"
        [[step]]
        create = "Lamp/spare"
        [[step]]
        send = "SwitchOn"
        entity = "Lamp/a"
        [[step]]
        restart = "kill"
        down_for = "100ms"
        [[step]]
        expect_state = "On"
        entity = "Lamp/a"
        [[step]]
        expect_transition = "SwitchOff"
        entity = "Lamp/a"
        within = "30s"
        [[step]]
        restart = "stop"
        [[step]]
        send = "SwitchOff"
        entity = "Lamp/a"
        expect_refused = "Off"
        [[step]]
        signal = "Looked"
        entity = "Lamp/a"
        from = "Person/1"
        payload = { at = "it" }
        [[step]]
        expect_record = { type = "signal", name = "Looked", payload = { at = "it" } }
        entity = "Lamp/a"
        [[step]]
        cancel = "Lamp/a"
        reason = "nothing to do"
        [[step]]
        expect_no_transition = "Break"
        entity = "Lamp/a"
        [[step]]
        expect_metric = "temper_wasm_epoch_tick_interval_ms_count"
        equals = 0
        [[step]]
        expect_replay = 0
        "#,
    );
    let said = sandglass(&[&"play", &folder.path("scenario.toml")]).exits(0);
    for line in ["a lamp", "> kill", "> start", "> stop", "On -> Off", "7 expectations: all held"] {
        assert!(said.out.contains(line), "no `{line}` in:\n{}", said.out);
    }
}

#[test]
fn a_failed_expectation_names_its_line_and_the_actual_value() {
    let folder = Folder::with_lamp_of(
        60,
        r#"[[step]]
send = "SwitchOn"
entity = "Lamp/a"

[[step]]
expect_state = "Broken"
entity = "Lamp/a"
within = "50ms"

[[step]]
send = "SwitchOn"
entity = "Lamp/a"

[[step]]
expect_no_transition = "SwitchOn"
entity = "Lamp/a"

[[step]]
expect_metric = "temper_handler_deadline_exceeded_total"
at_least = 1
within = "0s"

[[step]]
expect_replay = 3

[[step]]
expect_record = { type = "signal" }
within = "0s"
"#,
    );
    let said = sandglass(&[&"play", &folder.path("scenario.toml")])
        .exits(1)
        .says("scenario.toml:6")
        .says("expected  Lamp/a is in Broken")
        .says("Lamp/a is in On; its last transitions: SwitchOn (Off -> On)")
        .says("scenario.toml:11")
        .says("refused: ")
        .says("there is no sample of that name")
        .says("0 dispatches, 0 timeouts, 0 divergences")
        .says("no such record in this play; there are: 1 created, 1 spec_registered, 1 transition")
        .says("6 failed");
    assert_eq!(said.out.matches("FAILED").count(), 6, "{}", said.out);
    with_nobody_reading(&[&"play", &folder.path("scenario.toml")]).exits(1);
}

#[test]
fn json_output_has_one_event_per_line_and_the_summary_last() {
    let folder = Folder::with_lamp(
        "step = [{ send = \"Break\", entity = \"Lamp/a\" }, { expect_state = \"Broken\", entity = \"Lamp/a\" }]",
    );
    let lines =
        sandglass(&[&"play", &folder.path("scenario.toml"), &"--json"]).exits(0).json_lines();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"scenario"), Some(&"summary")));
    assert!(lines.iter().any(|line| line["record"]["event"]["action"] == "Break"), "{lines:?}");
    let summary = &lines[lines.len() - 1];
    assert_eq!((&summary["held"], &summary["expectations"]), (&true.into(), &1.into()));
}

#[test]
fn an_invalid_scenario_is_refused_before_anything_runs() {
    let folder = Folder::with_lamp(
        r#"naem = "x"
[[module]]
name = "m"
path = "absent.wasm"
memory = "64 miles"
[[step]]
send = "SwitchOn"
entity = "Lamp"
[[step]]
expect_stat = "On"
[[step]]
wait = 5
[[step]]
send = "SwitchOn"
entity = "Lamp/a"
params = { url = "${server.none}" }
[[step]]
restart = "gently"
[[step]]
wait = "1s"
create = "Lamp/b"
"#,
    );
    let journal = folder.path("play.journal");
    let said =
        sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]).exits(2);
    for text in [
        "scenario.toml:1:1: unknown key `naem`",
        "did you mean `name`?",
        "absent.wasm",
        "64 miles",
        "scenario.toml:8:",
        "did you mean `expect_state`?",
        "scenario.toml:12:",
        "there is no server `none`",
        "`gently` is not a way to restart",
        "has both",
    ] {
        assert!(said.out.contains(text), "no `{text}` in:\n{}", said.out);
    }
    assert!(!journal.exists(), "nothing ran");
}

#[test]
fn ambiguous_and_unknown_names_are_refused() {
    let folder = Folder::with_lamp(
        r#"
[[server]]
name = "slow"
[[server]]
name = "slow"
[[module]]
name = "m"
path = "scenario.toml"
[[module]]
name = "m"
path = "scenario.toml"
[[step]]
entity = "Lamp/a"
sned = "SwitchOn"
[[step]]
expect_metric = "temper_handler_deadline_exceded_total"
equals = 0
[[step]]
expect_metric = "temper_handler_kill_latency_ms"
equals = 0
"#,
    );
    let said = sandglass(&[&"play", &folder.path("scenario.toml")]).exits(2);
    for text in [
        "scenario.toml:5:1: two servers are named `slow`",
        "scenario.toml:10:1: two modules are named `m`",
        "scenario.toml:14:1: step 1 has no action",
        "did you mean `send`?",
        "there is no metric `temper_handler_deadline_exceded_total`",
        "did you mean `temper_handler_deadline_exceeded_total`?",
        "there is no metric `temper_handler_kill_latency_ms`",
        "did you mean `temper_handler_kill_latency_ms_sum`?",
    ] {
        assert!(said.out.contains(text), "no `{text}` in:\n{}", said.out);
    }
}

#[test]
fn a_finding_far_into_a_line_is_shown_shortened() {
    let long = "a".repeat(70_000);
    let folder = Folder::with_lamp(&format!("name = \"{long}\" y\n"));
    let scenario = folder.path("scenario.toml");
    sandglass(&[&"play", &scenario]).exits(2).says("scenario.toml:1:70011: ");
    folder.write("scenario.toml", format!("[[step]]\nwait = \"{long}\"\n"));
    let said = sandglass(&[&"play", &scenario]).exits(2).says("aaa…` is no duration");
    assert!(said.out.len() < 4_000, "{}", said.out);
}

#[test]
fn an_impossible_journal_path_is_refused_before_anything_starts() {
    let folder = Folder::with_lamp("[[step]]\ncreate = \"Lamp/a\"\n");
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    let nowhere = std::path::PathBuf::from("/dev/null");
    for journal in [&pipe, &nowhere] {
        sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", journal])
            .exits(2)
            .says("is not a regular file");
    }
    let left = std::fs::read_dir(folder.path("")).expect("there").count();
    assert_eq!(left, 3, "the spec, the scenario and the pipe");
}

#[test]
fn records_that_replace_torn_ones_belong_to_the_play() {
    let folder = Folder::with_lamp(
        "step = [{ send = \"SwitchOn\", entity = \"Lamp/a\" }, \
         { expect_transition = \"SwitchOff\", entity = \"Lamp/a\" }]",
    );
    let (scenario, journal) = (folder.path("scenario.toml"), folder.path("play.journal"));
    sandglass(&[&"play", &scenario, &"--journal", &journal]).exits(0);
    let damage =
        "UPDATE records SET at_ms = at_ms + 1 WHERE position = (SELECT max(position) FROM records)";
    rusqlite::Connection::open(&journal)
        .and_then(|connection| connection.execute_batch(damage))
        .expect("a journal");
    folder.write(
        "scenario.toml",
        "step = [{ create = \"Lamp/b\" }, \
         { expect_record = { type = \"created\" }, entity = \"Lamp/b\", within = \"1s\" }, \
         { expect_transition = \"SwitchOff\", entity = \"Lamp/a\" }]",
    );
    sandglass(&[&"play", &scenario, &"--journal", &journal])
        .exits(0)
        .says("> recovered")
        .says("2 expectations: all held");
    sandglass(&[&"replay", &journal]).exits(0);
}

const LOOP: &str = r#"
[automaton]
name = "Loop"
states = ["Idle", "Run", "End"]
initial = "Idle"
terminal = ["End"]
allow_indefinite_states = ["Idle", "Run"]

[[action]]
name = "Go"
from = ["Idle"]
to = "Run"
effect = "trigger turn_around"

[[action]]
name = "Over"
from = ["Run"]
to = "End"

[[integration]]
name = "turn_around"
module = "spins"
deadline = "60s"
on_failure = "Over"
on_timeout = "Over"
"#;

#[test]
fn handlers_of_an_earlier_play_are_named() {
    let folder = Folder::new();
    folder.write("loop.ioa.toml", LOOP);
    let guest = std::fs::read(fixture("wat/spins.wat")).expect("there");
    folder.write("spins.wat", guest);
    let go = "step = [{ send = \"Go\", entity = \"Loop/a\" }, { wait = \"1h\" }]";
    let (scenario, journal) = (folder.write("scenario.toml", go), folder.path("play.journal"));
    let mut running = Running::start(&[&"play", &scenario, &"--journal", &journal]);
    running.line_with("turn_around starts");
    running.signal_its_child("KILL");
    assert_eq!(running.ended().code(), Some(1));
    folder.write("scenario.toml", "step = [{ expect_transition = \"Over\", entity = \"Loop/a\" }]");
    sandglass(&[&"play", &scenario, &"--journal", &journal])
        .exits(0)
        .says("turn_around lost with its process; takes Over");
}

#[test]
fn wrong_specs_and_absent_modules_refuse_the_scenario() {
    let folder = Folder::with_lamp("[[step]]\ncreate = \"Lamp/a\"\n");
    let scenario = folder.path("scenario.toml");
    folder.write("other.ioa.toml", "[automaton]\nname = 5\n");
    sandglass(&[&"play", &scenario]).exits(2).says("other.ioa.toml:2:");
    let session = std::fs::read(fixture("incident/session.ioa.toml")).expect("there");
    folder.write("other.ioa.toml", session);
    sandglass(&[&"play", &scenario]).exits(2).says("there is no module `run_tools`");
    folder.write("run_tools.wat", "(module)");
    sandglass(&[&"play", &scenario]).exits(0);
}

#[test]
fn no_bytes_as_a_scenario_cause_a_panic() {
    let folder = Folder::with_lamp("");
    let scenario = folder.path("scenario.toml");
    let hostile: [&[u8]; 5] = [b"", &[0xff, 0x00], b"\x1b[2J", b"step = 5", &[b'['; 100_000]];
    for bytes in hostile {
        folder.write("scenario.toml", bytes);
        let said = sandglass(&[&"play", &scenario]).exits(2);
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{said:?}");
    }
    sandglass(&[&"play", &folder.path("absent.toml")]).exits(2).says("absent.toml");
    sandglass(&[&"play", &Folder::new().path("")]).exits(2).says("no scenario*.toml");
}

const LONG: &str = "step = [{ create = \"Lamp/a\" }, { wait = \"1h\" }]";

#[test]
fn ctrl_c_stops_a_play_gracefully() {
    let folder = Folder::with_lamp(LONG);
    let journal = folder.path("play.journal");
    let mut running =
        Running::start(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]);
    running.line_with("> wait");
    running.signal("INT");
    assert_eq!(running.ended().code(), Some(130));
    assert!(!folder.path("play.journal-wal").exists(), "the journal was closed");
    sandglass(&[&"replay", &journal]).exits(0);
}

#[test]
fn a_runtime_does_not_outlive_its_director() {
    let folder = Folder::with_lamp(LONG);
    let journal = folder.path("play.journal");
    let mut running =
        Running::start(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]);
    running.line_with("> wait");
    let lock = File::open(folder.path("play.journal.lock")).expect("the runtime made it");
    assert!(lock.try_lock().is_err(), "the runtime holds it");
    running.signal("KILL");
    assert!(!running.ended().success());
    lock.lock().expect("free as soon as the runtime has ended");
    sandglass(&[&"replay", &journal]).exits(0);
}

#[test]
fn a_runtime_that_ends_by_itself_fails_the_play() {
    let folder = Folder::with_lamp(LONG);
    let mut running = Running::start(&[&"play", &folder.path("scenario.toml")]);
    running.line_with("> wait");
    running.signal_its_child("KILL");
    assert_eq!(running.ended().code(), Some(1));
}

#[test]
fn metrics_are_served_while_it_plays() {
    let folder = Folder::with_lamp(LONG);
    let mut running =
        Running::start(&[&"play", &folder.path("scenario.toml"), &"--metrics", &"127.0.0.1:0"]);
    let line = running.line_with("/metrics");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let mut stream = TcpStream::connect(address.expect("an address")).expect("it is served");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("temper_handler_deadline_exceeded_total"), "{answer}");
}
