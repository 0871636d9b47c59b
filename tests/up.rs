//! `sandglass up`: the daemon as those who run it and those who ask it see it.

mod binary;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use binary::{Folder, LAMP, Running, WAITER, answer_of, fixture, sandglass, with_variable};
use serde_json::Value;

/// A daemon that listens.
struct Up {
    running: Running,
    address: String,
    said: std::path::PathBuf,
}

impl Up {
    fn start(folder: &Folder, more: &[&dyn AsRef<std::ffi::OsStr>]) -> Self {
        Self::with_variables(folder, &[], more)
    }

    fn with_variables(
        folder: &Folder,
        variables: &[(&str, &str)],
        more: &[&dyn AsRef<std::ffi::OsStr>],
    ) -> Self {
        let (specs, said) = (folder.path("."), folder.path("said"));
        let stderr = Stdio::from(File::create(&said).expect("made"));
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0"];
        arguments.extend_from_slice(more);
        let mut running = Running::with_variables(variables, stderr, &arguments);
        let address = running.address();
        Self { running, address, said }
    }

    /// Its answer: the status, and the body.
    #[track_caller]
    fn ask(&self, request: &str) -> (u16, Value) {
        self.ask_with(request, "", b"")
    }

    #[track_caller]
    fn ask_with(&self, request: &str, headers: &str, body: &[u8]) -> (u16, Value) {
        let (status, body) = self.answer(request, headers, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    #[track_caller]
    fn answer(&self, request: &str, headers: &str, body: &[u8]) -> (u16, String) {
        answer_of(&self.address, request, headers, body)
    }

    /// Waits until it has said this on standard error.
    #[track_caller]
    fn until_said(&self, text: &str) {
        let said = || std::fs::read_to_string(&self.said).expect("it is there");
        // Each look asks the daemon something, so it neither spins nor needs a pause.
        let found = (0..20_000).find(|_| said().contains(text) || self.ask("GET /healthz").0 == 0);
        assert!(found.is_some(), "`{text}` was never said in:\n{}", said());
    }

    /// Ends it as a supervisor does.
    #[track_caller]
    fn ends(self, code: i32) -> String {
        let ended = self.running.ended();
        let said = std::fs::read_to_string(&self.said).expect("it is there");
        assert_eq!(ended.code(), Some(code), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

fn lamp() -> Folder {
    let folder = Folder::new();
    folder.write("lamp.ioa.toml", LAMP.replace("after_seconds = 1", "after_seconds = 3600"));
    folder
}

fn waiter() -> Folder {
    let folder = Folder::new();
    folder.write("waiter.ioa.toml", WAITER);
    let module = std::fs::read(fixture("wat/sleeps_in_wasi_poll.wat")).expect("it is there");
    folder.write("waits.wat", module);
    // A quarter of it is for ending and recording.
    folder.write("sandglass.toml", "grace = \"8s\"\n");
    folder
}

fn logged(journal: &Path) -> String {
    sandglass(&[&"log", &journal, &"--json"]).exits(0).out
}

#[test]
fn a_daemon_that_is_stopped_while_it_compiles_has_nothing_to_drain() {
    let folder = waiter();
    // It compiles for seconds.
    let body = "(local.set 0 (i32.mul (local.get 0) (i32.const 3)))".repeat(40);
    let functions = format!("(func (param i32) {body})").repeat(3000);
    let run = r#"(func (export "run") (param i32 i32) (result i32) i32.const 0)"#;
    let module = format!(r#"(module (memory (export "memory") 1) {functions} {run})"#);
    // A text of this size is refused at once.
    folder.write("waits.wasm", wat::parse_str(module).expect("a module"));
    let (specs, said, code) = (folder.path("."), folder.path("said"), folder.path("code"));
    let stderr = Stdio::from(File::create(&said).expect("made"));
    let running = Running::with_stderr(
        stderr,
        &[&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &"--compiled-cache", &code],
    );
    // Made with the host, which compiles next.
    binary::until(|| {
        sandglass(&[&"--version"]).code == Some(0) && code.join("sandglass.key").exists()
    });
    running.signal("TERM");
    let ended = running.ended();
    let said = std::fs::read_to_string(said).expect("it is there");
    assert_eq!(ended.code(), Some(0), "{said}");
    assert!(said.contains("stopped before it listened"), "{said}");
}

#[test]
fn metrics_have_the_prefix_of_the_configuration_and_keep_it() {
    let folder = lamp();
    let config = folder.path("sandglass.toml");
    folder.write("sandglass.toml", "[metrics]\nprefix = \"acme\"\n");
    let up = Up::start(&folder, &[&"--config", &config]);
    let (status, scrape) = up.answer("GET /metrics", "", b"");
    assert_eq!(status, 200);
    assert!(scrape.contains("# TYPE acme_handler_deadline_exceeded_total counter"), "{scrape}");
    assert!(!scrape.contains("temper"), "{scrape}");
    folder.write("sandglass.toml", "[metrics]\nprefix = \"other\"\n");
    up.running.signal("HUP");
    up.until_said("nothing was reloaded");
    up.until_said("[metrics]");
    up.running.signal("TERM");
    up.ends(0);
}

#[test]
fn entities_exist_again_after_a_restart() {
    let folder = lamp();
    let journal = folder.path("runs.db");
    let up = Up::start(&folder, &[&"--journal", &journal]);
    assert_eq!(up.ask("POST /v1/entities/Lamp/a").0, 201);
    assert_eq!(up.ask("POST /v1/entities/Lamp/a/actions/SwitchOn").0, 200);
    assert_eq!(up.ask("POST /v1/entities/Lamp/a/actions/SwitchOn").0, 409);
    // One journal has one daemon.
    let specs = folder.path(".");
    let second = sandglass(&[
        &"up",
        &"--specs",
        &specs,
        &"--journal",
        &journal,
        &"--listen",
        &"127.0.0.1:0",
    ]);
    second.exits(2).says("journal");
    up.running.signal("TERM");
    let said = up.ends(0);
    assert!(said.contains("0 handlers in flight") && said.contains("stopped"), "{said}");
    let up = Up::start(&folder, &[&"--journal", &journal]);
    let (status, lamp) = up.ask("GET /v1/entities/Lamp/a");
    assert_eq!((status, &lamp["state"], &lamp["sequence"]), (200, &"On".into(), &1.into()));
    up.running.signal("INT");
    up.ends(0);
    sandglass(&[&"replay", &journal]).exits(0).says("0 divergences");
}

#[test]
fn a_stop_lets_handlers_end_then_stops_and_records_them_within_the_grace() {
    let folder = waiter();
    let (journal, config) = (folder.path("runs.db"), folder.path("sandglass.toml"));
    let up = Up::start(&folder, &[&"--journal", &journal, &"--config", &config]);
    up.ask("POST /v1/entities/Waiter/a");
    assert_eq!(up.ask("POST /v1/entities/Waiter/a/actions/Wait").0, 200);
    up.running.signal("TERM");
    let said = up.ends(0);
    assert!(said.contains("1 handlers in flight"), "{said}");
    assert!(said.contains("stopping `waits` of Waiter/a"), "{said}");
    let log = logged(&journal);
    assert!(log.contains(r#""cause":"shutdown""#), "{log}");
    let up = Up::start(&folder, &[&"--journal", &journal]);
    assert_eq!(up.ask("GET /v1/entities/Waiter/a").1["state"], "Done");
}

#[test]
fn a_second_signal_ends_a_daemon_at_once_and_the_next_start_finds_interrupted_handlers() {
    let folder = waiter();
    let journal = folder.path("runs.db");
    let up = Up::start(&folder, &[&"--journal", &journal]);
    up.ask("POST /v1/entities/Waiter/a");
    up.ask("POST /v1/entities/Waiter/a/actions/Wait");
    up.running.signal("TERM");
    let said = up.said.clone();
    binary::until(|| {
        let _ = sandglass(&[&"--version"]);
        std::fs::read_to_string(&said).expect("it is there").contains("accepting no more")
    });
    up.running.signal("TERM");
    up.ends(130);
    let up = Up::start(&folder, &[&"--journal", &journal]);
    assert_eq!(up.ask("GET /v1/entities/Waiter/a").1["state"], "Done");
    assert!(logged(&journal).contains(r#""cause":"host_lost""#));
}

#[test]
fn an_uploaded_module_is_used_after_a_restart() {
    let folder = waiter();
    let journal = folder.path("runs.db");
    let up = Up::start(&folder, &[&"--journal", &journal]);
    let module = std::fs::read(fixture("built/echo.wasm")).expect("it is there");
    let wasm = "content-type: application/wasm\r\n";
    let (status, put) = up.ask_with("PUT /v1/modules/waits", wasm, &module);
    assert_eq!((status, &put["source"]), (200, &"put".into()));
    up.running.signal("TERM");
    up.ends(0);
    let up = Up::start(&folder, &[&"--journal", &journal]);
    assert_eq!(up.ask("GET /v1/modules").1["modules"][0], put);
    up.until_said("is the version that `local` uploaded");
    up.ask("POST /v1/entities/Waiter/a");
    let waits = "POST /v1/entities/Waiter/a/actions/Wait?wait=settled&timeout=60s";
    assert_eq!(up.ask(waits).1["waited"]["entity"]["state"], "Done");
}

#[test]
fn only_a_loopback_address_is_served_without_a_key() {
    let folder = lamp();
    let specs = folder.path(".");
    let open = sandglass(&[&"up", &"--specs", &specs, &"--listen", &"0.0.0.0:0"]);
    open.exits(2).says("--api-key-env");
    let key: &[&dyn AsRef<std::ffi::OsStr>] =
        &[&"up", &"--specs", &specs, &"--listen", &"0.0.0.0:0", &"--api-key-env", &"UP_KEY"];
    sandglass(key).exits(2).says("the environment has no `UP_KEY`");
    with_variable("UP_KEY", "short", key).exits(2).says("holds no key");
    let openwop: &[&dyn AsRef<std::ffi::OsStr>] = &[
        &"openwop",
        &"--workflows",
        &specs,
        &"--listen",
        &"0.0.0.0:0",
        &"--api-key-env",
        &"UP_KEY",
    ];
    let said = with_variable("UP_KEY", "short", openwop).exits(2);
    said.says("the key in `UP_KEY` has fewer than 16 characters").says("set a longer one");
    let secret = "a-key-that-nobody-guesses";
    let up = Up::with_variables(&folder, &[("UP_KEY", secret)], &[&"--api-key-env", &"UP_KEY"]);
    assert_eq!(up.ask("GET /healthz").0, 200);
    assert_eq!(up.ask("GET /v1/modules").0, 401);
    let bearer = format!("authorization: Bearer {secret}\r\n");
    assert_eq!(up.ask_with("GET /v1/modules", &bearer, b"").0, 200);
    assert!(!std::fs::read_to_string(&up.said).expect("it is there").contains(secret));
}

#[test]
fn budgets_are_computed_from_the_metrics_of_a_daemon() {
    let folder = waiter();
    let module = std::fs::read(fixture("wat/empty_result.wat")).expect("it is there");
    folder.write("waits.wat", module);
    let secret = "a-key-that-nobody-guesses";
    let up = Up::with_variables(&folder, &[("UP_KEY", secret)], &[&"--api-key-env", &"UP_KEY"]);
    let bearer = format!("authorization: Bearer {secret}\r\n");
    let address = format!("http://{}", up.address);
    let fresh: &[&dyn AsRef<std::ffi::OsStr>] =
        &[&"budgets", &address, &"--api-key-env", &"UP_KEY"];
    with_variable("UP_KEY", secret, fresh).exits(0).says("no handler has run yet");
    for id in ["a", "b"] {
        up.ask_with(&format!("POST /v1/entities/Waiter/{id}"), &bearer, b"");
        let waits = format!("POST /v1/entities/Waiter/{id}/actions/Wait?wait=settled&timeout=60s");
        assert_eq!(up.ask_with(&waits, &bearer, b"").0, 200);
    }
    sandglass(&[&"budgets", &address]).exits(2).says("--api-key-env");
    let asked: &[&dyn AsRef<std::ffi::OsStr>] =
        &[&"budgets", &address, &"--api-key-env", &"UP_KEY", &"--json"];
    sandglass(asked).exits(2).says("`UP_KEY` holds no key");
    let told = with_variable("UP_KEY", secret, asked).exits(0).json_lines();
    let one = &told[0]["budgets"][0];
    let of = (&one["entity_type"], &one["action"], &one["runs"], &one["advice"]);
    assert_eq!(of, (&"Waiter".into(), &"Wait".into(), &2.into(), &"too_few".into()), "{one}");
    assert_eq!(one["budget_ms"], 3_600_000, "{one}");
    assert_eq!(one["estimated"], true, "{one}");
    with_variable("UP_KEY", secret, fresh).exits(0).says("p50 ~");

    let health = format!("{address}/healthz");
    sandglass(&[&"budgets", &health]).exits(2).says("no metrics of handlers");
    up.running.signal("TERM");
    up.ends(0);
    sandglass(&[&"budgets", &address]).exits(2).says("can't get");
    sandglass(&[&"budgets", &"ftp://127.0.0.1:1"]).exits(2).says("https://HOST:PORT");
    sandglass(&[&"budgets", &"http://[::1/x"]).exits(2).says("not an address");
}

#[test]
fn an_invalid_configuration_is_refused_with_its_lines() {
    let folder = lamp();
    let config = folder.write("sandglass.toml", "\ngrcae = \"2s\"\n");
    let specs = folder.path(".");
    let refused = sandglass(&[&"up", &"--specs", &specs, &"--config", &config]).exits(2);
    refused.says("sandglass.toml:2:1: unknown key `grcae`").says("`grace`");
    sandglass(&[&"up", &"--specs", &folder.path("none")]).exits(2).says("is not a folder");
    folder.write("sandglass.toml", "[journal]\npath = \"postgresql://ann:secret@h/d\"\n");
    let refused = sandglass(&[&"up", &"--specs", &specs, &"--config", &config]).exits(2);
    let refused = refused.says("sandglass.toml:2:").says("`url_env`");
    assert!(!refused.err.contains("secret"), "{}", refused.err);
}

#[test]
fn a_database_is_named_by_a_variable_and_its_url_is_not_repeated() {
    let folder = lamp();
    let specs = folder.path(".");
    for server in [["up", "--specs"], ["openwop", "--workflows"]] {
        for (option, place, expected) in [
            ("--journal", "env:UP_URL", "--journal-env VAR"),
            ("--journal", "postgresql://ann:secret@h/d", "--journal-env VAR"),
            ("--journal-env", "env:UP_URL", "the name of an environment variable"),
            ("--journal-env", "postgresql://ann:secret@h/d", "the name of an environment variable"),
            ("--journal-env", "ABSENT_URL", "the environment has no `ABSENT_URL`"),
        ] {
            let key = ["--listen", "127.0.0.1:0", "--api-key-env", "UP_KEY"];
            let [command, of] = server;
            let said = with_variable(
                "UP_KEY",
                "a-key-that-nobody-guesses",
                &[&command, &of, &specs, &key[0], &key[1], &key[2], &key[3], &option, &place],
            );
            let said = said.exits(2).says(expected);
            assert!(!said.err.contains("secret"), "{}", said.err);
        }
    }
}

#[test]
fn a_folder_with_errors_is_refused_with_each_finding_at_its_line() {
    let folder = Folder::new();
    // The warnings come first.
    let warned = WAITER.replace("allow_indefinite_states = [\"Idle\", \"Waiting\"]\n", "");
    folder.write("waiter.ioa.toml", &warned);
    let specs = folder.path(".");
    let refused = sandglass(&[&"up", &"--specs", &specs]).exits(2);
    let line = |text: &str| {
        let line = refused.err.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no `{text}` in:\n{}", refused.err))
    };
    assert!(line("there is no module `waits`").contains('×'), "{}", refused.err);
    assert!(line("`Waiting`").contains('⚠'), "{}", refused.err);
    assert_eq!(line("error:"), "error: 1 error in the files; nothing is served");
    assert_eq!(refused.out, "");
    sandglass(&[&"check", &specs]).exits(0).says("without which `up` and `play` refuse the folder");

    // On a reload, the log has the cause alone.
    let module = std::fs::read(fixture("wat/sleeps_in_wasi_poll.wat")).expect("it is there");
    let module = folder.write("waits.wat", module);
    let up = Up::start(&folder, &[]);
    std::fs::remove_file(module).expect("it is there");
    up.running.signal("HUP");
    up.until_said("there is no module `waits`");
    let said = std::fs::read_to_string(&up.said).expect("it is there");
    let line = said.lines().find(|line| line.contains("there is no module")).expect("it was said");
    assert!(line.starts_with("error: nothing was reloaded"), "{line}");
    assert!(!line.contains("`Waiting`"), "{line}");
}

#[test]
fn a_reload_applies_all_or_nothing_and_gives_the_reason() {
    let folder = lamp();
    let config = folder.write("sandglass.toml", "");
    let variables = [("ANN_KEY", "anns-key-for-everything")];
    let up = Up::with_variables(&folder, &variables, &[&"--config", &config]);
    assert_eq!(up.ask("GET /v1/modules").0, 200);
    folder.write("sandglass.toml", "\n[[kye]]\n");
    up.running.signal("HUP");
    up.until_said("sandglass.toml:2:3: unknown key `kye`");
    folder.write("sandglass.toml", "grace = \"9s\"");
    up.running.signal("HUP");
    up.until_said("`grace` cannot change while the daemon runs");
    folder.write("sandglass.toml", "");
    folder.write("lamp.ioa.toml", LAMP.replace("initial = \"Off\"", "initial = \"Of\""));
    up.running.signal("HUP");
    up.until_said("lamp.ioa.toml:5:");
    assert_eq!(up.ask("POST /v1/entities/Lamp/a").0, 201);
    folder.write("lamp.ioa.toml", LAMP.replace("name = \"Break\"", "name = \"Smash\""));
    folder.write("sandglass.toml", "[[key]]\nowner = \"ann\"\nenv = \"ANN_KEY\"\n");
    up.running.signal("HUP");
    up.until_said("\nreloaded");
    assert_eq!(up.ask("GET /v1/modules").0, 401);
    let bearer = "authorization: Bearer anns-key-for-everything\r\n";
    assert_eq!(up.ask_with("POST /v1/entities/Lamp/b", bearer, b"").0, 201);
    // One that lives and rests obeys the new spec, too.
    for lamp in ["a", "b"] {
        let smash = format!("POST /v1/entities/Lamp/{lamp}/actions/Smash");
        assert_eq!(up.ask_with(&smash, bearer, b"").0, 200, "{lamp}");
    }
}

#[test]
fn a_reload_changes_session_limits_from_the_next_run_on() {
    let watchdog = |seconds: u32| {
        format!("[runtime_controls.goals.Lamp]\nsession_wall_clock_seconds = {seconds}\n")
    };
    let folder = lamp();
    let config = folder.write("sandglass.toml", watchdog(3_600));
    let up = Up::start(&folder, &[&"--config", &config]);
    // In parts of ten minutes, rounded up: far more than any machine takes for it.
    let most = |id: &str| {
        let (_, view) = up.ask(&format!("GET /v1/sessions/Lamp/{id}"));
        view["budget_left_ms"].as_u64().expect("a limit").div_ceil(600_000)
    };
    let born = |id: &str| {
        assert_eq!(up.ask(&format!("POST /v1/entities/Lamp/{id}")).0, 201);
        most(id)
    };
    assert_eq!(born("a"), 6);
    folder.write("sandglass.toml", watchdog(7_200));
    up.running.signal("HUP");
    up.until_said("\nreloaded");
    assert_eq!((born("b"), most("a")), (12, 6), "the next run, and no other");
    for (wrong, said) in [
        ("[limits.of.Lamp]\nrun_timout = \"1h\"\n", "did you mean `run_timeout`?"),
        ("[runtime_controls]\nsession_wall_clock_seconds = -1\n", "sandglass.toml:2:30"),
        ("[sdk_timeouts]\nkill_threshold_seconds = 1.5\n", "sandglass.toml:2:26"),
    ] {
        folder.write("sandglass.toml", wrong);
        up.running.signal("HUP");
        up.until_said(said);
        up.until_said("nothing was reloaded");
    }
    assert_eq!(born("c"), 12, "the old ones stay");
}

/// A module that takes a while to compile.
fn large_module() -> String {
    let steps =
        "(local.set 0 (i32.rotl (i32.mul (local.get 0) (i32.const 31)) (local.get 0)))".repeat(200);
    let function = format!("(func (param i32) (result i32) {steps} (local.get 0))");
    format!("(module {})", function.repeat(300))
}

#[test]
fn a_stop_signal_is_handled_during_a_reload() {
    let folder = waiter();
    let up = Up::start(&folder, &[]);
    folder.write("waits.wat", large_module());
    up.running.signal("HUP");
    up.until_said("reloading");
    up.running.signal("TERM");
    let said = up.ends(0);
    let ending = said.find("accepting no more").expect("it says so");
    let reload = said.find("reloaded").unwrap_or(usize::MAX);
    assert!(ending < reload, "{said}");
}

#[test]
fn any_folder_that_play_takes_is_served() {
    let incident = fixture("incident");
    let mut running = Running::start(&[&"up", &"--specs", &incident, &"--listen", &"127.0.0.1:0"]);
    running.line_with("listening on http://");
    running.signal("TERM");
    assert_eq!(running.ended().code(), Some(0));
}
