//! Spec files: what is read, and what is said of the ones that can't be.

use proptest::prelude::*;
use sandglass_liveness::spec::{Assigned, Counted, Effect, IntegrationKind, OnCrash, Strictness};
use sandglass_liveness::{Diagnostic, Severity, Spec};
use sandglass_model::RulesVersion;
use serde_json::json;

use crate::session::SESSION;

/// The file of the users' documentation, word for word.
const DOCUMENTED: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Executing", "Done", "Failed", "TimedOut"]
initial = "Idle"
terminal = ["Done", "Failed", "TimedOut"]

[[action]]
name = "ProcessToolCalls"
from = ["Idle"]
to = "Executing"
effect = [{ type = "trigger", name = "run_tools" }]

[[action]]
name = "Finish"
from = ["Executing"]
to = "Done"

[[action]]
name = "Fail"
from = ["Executing"]
to = "Failed"

[[action]]
name = "HandlerTimedOut"
from = ["Executing"]
to = "TimedOut"

[[integration]]
name = "run_tools"
trigger = "run_tools"
type = "wasm"
module = "run_tools"        # file or registered module
deadline = "900s"           # new; `timeout_secs = "900"` is accepted as its older spelling
on_success = "Finish"
on_failure = "Fail"
on_timeout = "HandlerTimedOut"   # new

[[state_timeout]]
state = "Executing"
after_seconds = 300         # idle: does not count while run_tools is in flight
on_timeout = "Fail"
reset_on = ["PartnerReplied"]    # another entity's signal
"#;

fn warnings(source: &str) -> Vec<Diagnostic> {
    let parsed = Spec::parse(source);
    assert!(parsed.spec.is_some(), "{:#?}", parsed.diagnostics);
    parsed.diagnostics
}

fn read(source: &str) -> Spec {
    let parsed = Spec::parse(source);
    parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics))
}

/// A spec of one handler, with `more` in its integration.
fn with(more: &str) -> String {
    DOCUMENTED.replace("deadline = \"900s\"", more)
}

#[test]
fn reads_the_documented_file() {
    let spec = read(DOCUMENTED);
    assert_eq!(&*spec.name, "Session");
    assert_eq!(spec.actions["ProcessToolCalls"].dispatches, ["run_tools"]);
    let integration = &spec.integrations["run_tools"];
    assert_eq!(integration.budget_ms, 900_000);
    assert_eq!(integration.schedule_to_start_ms, 900_000);
    assert_eq!(integration.on_interrupted.as_deref(), Some("HandlerTimedOut"));
    assert_eq!(integration.on_cancelled.as_deref(), Some("HandlerTimedOut"));
    assert!(integration.config.is_empty() && !integration.budget_defaulted);
    assert_eq!(spec.timeouts["Executing"].after_ms, 300_000);
    let said: Vec<String> = warnings(DOCUMENTED).iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("state `Idle` may last forever"), "{said:#?}");
}

#[test]
fn reads_older_spellings() {
    for (text, budget) in [
        ("timeout_secs = \"900\"", 900_000),
        ("timeout_secs = 2", 2_000),
        ("timeout_secs = 1.5", 1_500),
        ("deadline = \"1h30m\"", 5_400_000),
        ("config = { timeout_secs = \"30\" }", 30_000),
    ] {
        assert_eq!(read(&with(text)).integrations["run_tools"].budget_ms, budget, "{text}");
    }
    let effect = |text: &str| {
        let source = DOCUMENTED.replace("[{ type = \"trigger\", name = \"run_tools\" }]", text);
        read(&source).actions["ProcessToolCalls"].dispatches.clone()
    };
    for text in [
        "\"trigger run_tools\"",
        "[\"trigger run_tools\"]",
        "{ type = \"trigger\", name = \"run_tools\" }",
        "[\"trigger run_tools\", { type = \"trigger\", name = \"run_tools\" }]",
    ] {
        assert_eq!(effect(text), ["run_tools"], "{text}");
    }
}

#[test]
fn an_action_may_be_the_trigger() {
    let source = DOCUMENTED
        .replace("effect = [{ type = \"trigger\", name = \"run_tools\" }]", "")
        .replace("trigger = \"run_tools\"", "trigger = \"ProcessToolCalls\"");
    assert_eq!(read(&source).actions["ProcessToolCalls"].dispatches, ["run_tools"]);
}

#[test]
fn reads_triggers_under_their_action() {
    let source = DOCUMENTED.split("[[integration]]").next().expect("a first part").replace(
        "effect = [{ type = \"trigger\", name = \"run_tools\" }]",
        r#"
        kind = "input"
        params = ["calls", { name = "urgent", type = "bool" }]
        hint = "Runs the tools."
        effect = [{ type = "trigger", name = "run_tools" }]
        [[action.triggers]]
        name = "run_tools"
        kind = "wasm"
        module = "tools"
        on_success = "Finish"
        on_failure = "Fail"
        keep_on_exit = true
        on_crash = "rerun"
        schedule_to_start_timeout = "5s"
        [action.triggers.config]
        url = "https://example.org"
        retries = 3
        verbose = true
        "#,
    ) + "[[state_timeout]]\nstate = \"Executing\"\nafter_seconds = 0.25\non_timeout = \"Fail\"\n";
    let spec = read(&source);
    let action = &spec.actions["ProcessToolCalls"];
    assert_eq!(action.dispatches, ["run_tools"]);
    assert_eq!(action.params.iter().map(|name| &**name).collect::<Vec<_>>(), ["calls", "urgent"]);
    let integration = &spec.integrations["run_tools"];
    assert_eq!(&*integration.module, "tools");
    assert_eq!(integration.config["retries"], "3");
    assert_eq!(integration.config["verbose"], "true");
    assert!(integration.keep_on_exit && integration.budget_defaulted);
    assert_eq!(integration.on_crash, OnCrash::Rerun);
    assert_eq!(integration.schedule_to_start_ms, 5_000);
    assert_eq!(spec.timeouts["Executing"].after_ms, 250);
}

#[test]
fn a_trigger_under_an_action_is_an_error() {
    let source = DOCUMENTED.replace(
        "name = \"Finish\"",
        "name = \"Finish\"\n[[action.triggers]]\nname = \"notify\"\nmodule = \"m\"\n\
         trigger = \"elsewhere\"\non_failure = \"Fail\"\n[[action]]\nname = \"Wrap\"",
    );
    let said = Spec::parse(&source).diagnostics;
    let error = said.iter().find(|one| one.message.contains("`trigger` has no place"));
    assert_eq!(error.map(|error| error.severity), Some(Severity::Error), "{said:#?}");
}

#[test]
fn further_keys_of_an_integration_are_its_configuration() {
    let spec = read(&with("deadline = \"1s\"\nregion = \"north\"\nlimit = 3\nlist = [1, \"x\"]"));
    let config = &spec.integrations["run_tools"].config;
    assert_eq!(config["region"], "north");
    assert_eq!(config["limit"], "3");
    assert_eq!(config["list"], "[1,\"x\"]");
}

#[test]
fn reads_how_handlers_count_towards_the_bounds_of_a_run() {
    for (said, expected, has_turns) in [
        ("deadline = \"1s\"", Counted::Handler, false),
        ("deadline = \"1s\"\nturn = true", Counted::Turn, true),
        ("deadline = \"1s\"\nturn = \"true\"\ncontinues = false", Counted::Turn, true),
        ("deadline = \"1s\"\ncontinues = true", Counted::Continuation, false),
        ("deadline = \"1s\"\nturn = false\ncontinues = false", Counted::Handler, false),
    ] {
        let spec = read(&with(said));
        assert_eq!((spec.counted("run_tools"), spec.has_turns()), (expected, has_turns), "{said}");
        assert_eq!(spec.integrations["run_tools"].config.len(), 0, "it configures nothing");
        assert_eq!(spec.counted("nonsense"), Counted::Handler);
    }
}

#[test]
fn reads_the_parameter_that_gives_a_handler_less_time() {
    let spec = read(&with("deadline = \"1s\"\ndeadline_param = \"most_ms\""));
    let integration = &spec.integrations["run_tools"];
    assert_eq!(integration.budget_param.as_deref(), Some("most_ms"));
    assert_eq!(integration.config.len(), 0, "it configures nothing");
    assert_eq!(read(&with("deadline = \"1s\"")).integrations["run_tools"].budget_param, None);
    mistake("region = \"north\"", "deadline_param = 5", "must be a string, and is an integer");
}

#[test]
fn reads_variables_effects_and_guards() {
    let source = SESSION.replace(
        "effect = [\"trigger run_tools\", \"increment rounds\"]",
        "guard = \"rounds < 3 and not note == 'x'\"\neffect = [\"trigger run_tools\", \
         { type = \"set\", var = \"rounds\", value = \"7\" }, \"set note all done\"]",
    );
    let spec = read(&source);
    assert_eq!(spec.initial_variables()["note"], json!("none"));
    assert_eq!(spec.initial_variables()["rounds"], json!(0));
    let effects = &spec.actions["ProcessToolCalls"].effects;
    let literals: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Set { value: Assigned::Literal(value), .. } => Some(value.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(literals, [json!(7), json!("all done")]);
}

/// Replaces `old` by `new` in the session, and expects the one error there in strict files.
#[track_caller]
fn mistake(old: &str, new: &str, expected: &str) {
    assert!(SESSION.contains(old), "{old}");
    let source = SESSION.replacen(old, new, 1);
    let parsed = Spec::parse_with(&source, Strictness::Strict);
    assert!(parsed.spec.is_none(), "{new}: {:#?}", parsed.diagnostics);
    let errors: Vec<String> = parsed
        .diagnostics
        .iter()
        .filter(|one| one.severity == Severity::Error)
        .map(ToString::to_string)
        .collect();
    assert!(errors.iter().any(|error| error.contains(expected)), "{new}: {errors:#?}");
}

#[test]
fn every_mistake_has_a_place_and_advice() {
    mistake("name = \"Session\"", "name = 3", "3:8: error: `name` in [automaton] must be a string");
    mistake(
        "initial = \"Idle\"",
        "initial = \"Idel\"",
        "5:11: error: `Idel` is no declared state\n  help: did you mean `Idle`?",
    );
    mistake(
        "initial = \"Idle\"",
        "initail = \"Idle\"",
        "5:1: error: unknown key `initail` in [automaton]\n  help: did you mean `initial`?",
    );
    mistake(
        "[[state]]",
        "[[stat]]",
        "9:3: error: unknown key `stat` in the file\n  help: did you mean `state`?",
    );
    mistake(
        "initial = \"none\"",
        "initial = \"none\"\n[[state]]\nname = \"more\"\ntype = \"counter\"\ninitial = true",
        "`initial` must be a counter, and is true\n  help: a counter holds a whole number from 0",
    );
    mistake("from = [\"Idle\"]\nto", "form = [\"Idle\"]\nto", "help: did you mean `from`?");
    mistake("from = [\"Idle\"]\nto", "to", "action `ProcessToolCalls` has no `from`");
    mistake("\"increment rounds\"", "\"increment note\"", "22:32: error: `note` is no counter");
    mistake("\"increment rounds\"", "\"explode\"", "`explode` is no effect");
    mistake(
        "type = \"set\"",
        "type = \"sett\"",
        "no effect is of type `sett`\n  help: did you mean `set`?",
    );
    mistake(
        "action = \"ProcessToolCalls\", delay",
        "action = \"Process\", delay",
        "no action is named `Process`",
    );
    mistake("delay_seconds = 60", "delay_seconds = -1", "-1 seconds is not above zero");
    mistake("to = \"Done\"", "to = \"Dome\"", "`Dome` is no declared state");
    mistake(
        "to = \"Done\"",
        "to = \"Done\"\nguard = \"rounds > 'x'\"",
        "44:19: error: guard: `\"x\"` is of another type than `rounds`",
    );
    mistake("deadline = \"900s\"", "deadline = 900", "`900` has no unit");
    mistake("deadline = \"900s\"", "deadline = \"0s\"", "a duration of zero");
    mistake("deadline = \"900s\"", "deadline = \"400d\"", "366 days at most");
    mistake(
        "deadline = \"900s\"",
        "deadline = \"900s\"\ntimeout_secs = 900",
        "66:16: error: integration `run_tools` declares its budget twice",
    );
    mistake(
        "on_failure = \"Fail\"",
        "",
        "integration `run_tools` has no `on_failure`; it takes `Fail`\n  help: add `on_failure",
    );
    mistake(
        "on_failure = \"Fail\"",
        "on_failure = \"Crash\"",
        "66:14: error: integration `run_tools`: `on_failure` is `Crash`, which is not declared",
    );
    mistake(
        "on_cancelled = \"Stop\"",
        "on_cancelled = \"Later\"",
        "`on_cancelled` is `Later`, which state `Executing` does not accept",
    );
    mistake("on_timeout = \"HandlerTimedOut\"", "on_timeout = \"Nope\"", "`on_timeout` is `Nope`");
    mistake("type = \"wasm\"", "type = \"shell\"", "`run_tools` is of the type `shell`");
    mistake("region = \"north\"", "on_crash = \"retry\"", "`on_crash` cannot be `retry`");
    mistake("region = \"north\"", "turn = 1", "must be true or false, and is an integer");
    mistake("region = \"north\"", "continues = [true]", "must be true or false, and is an array");
    mistake(
        "region = \"north\"",
        "turn = true\ncontinues = true",
        "70:1: error: integration `run_tools` says both `turn` and `continues`\n  help: keep `turn`",
    );
    mistake(
        "allow_indefinite_states = [\"Idle\"]",
        "allow_indefinite_states = [\"Idle\", \"Nowhere\"]",
        "`Nowhere` is no declared state",
    );
    mistake(
        "[[state_timeout]]\nstate = \"Executing\"",
        "[[state_timeout]]\nstate = \"Idle\"",
        "state `Executing` may last forever",
    );
    mistake("after_seconds = 300", "after_seconds = 0", "0 seconds is not above zero");
    mistake("max_occurrences = 2", "max_occurrences = 0", "whole number from 1");
    mistake("max_occurrences = 2", "max_occurrences = \"0\"", "whole number from 1");
    mistake("name = \"Session\"", "name = 3", "must be a string, and is an integer");
    mistake(
        "var = \"note\"",
        "vra = \"note\"",
        "`vra` in an effect of action `Note`\n  help: did you mean `var`?",
    );
    mistake(
        "params = { reason = \"idle\" }",
        "params = 3",
        "`params` in [[state_timeout]] must be a table",
    );
    mistake(
        "after_seconds = 300\non_timeout = \"Fail\"",
        "after_seconds = 300\non_timeout = \"Later\"",
        "state `Executing` does not accept `Later`",
    );
    mistake("name = \"Pause\"", "name = \"Note\"", "action `Note` is declared twice");
    mistake(
        "to = \"Executing\"",
        "to = \"Done\"",
        "integration `run_tools` starts in `Done`, which is terminal",
    );
    mistake("[[state]]", "[[state]", "error: ");
    mistake("name = \"Session\"", "name = \"Ses\\u001bsion\"", "holds a control character");
    mistake("name = \"Session\"", "name = \"Ses/sion\"", "may hold no `/`");
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let source = SESSION
        .replace("initial = \"Idle\"", "initial = \"Idel\"")
        .replace("to = \"Done\"", "to = \"Dome\"")
        .replace("max_occurrences = 2", "max_occurences = 2");
    let found = Spec::parse_with(&source, Strictness::Strict).diagnostics;
    let errors = found.iter().filter(|one| one.severity == Severity::Error);
    let lines: Vec<usize> = errors.map(|one| one.line).collect();
    assert_eq!(lines, [5, 43, 76], "{found:#?}");
}

/// What is said of `source` if it is checked strictly, errors alone.
fn errors(source: &str) -> Vec<String> {
    let found = Spec::parse_with(source, Strictness::Strict).diagnostics;
    let errors = found.iter().filter(|one| one.severity == Severity::Error);
    errors.map(ToString::to_string).collect()
}

#[test]
fn a_mistake_hides_none_of_the_others() {
    for (old, new, said) in [
        ("name = \"Session\"\n", "", "[automaton] has no `name`"),
        ("initial = \"Idle\"\n", "", "[automaton] has no `initial`"),
        ("after_seconds = 300", "after_seconds = 0", "not above zero"),
        ("after_seconds = 300\non_timeout = \"Fail\"", "after_seconds = 300", "no `on_timeout`"),
        ("states = [", "states = 3 # [", "`states` in [automaton] must be a list"),
    ] {
        assert!(SESSION.contains(old), "{old}");
        let unlimited = SESSION.replace("max_occurrences = 2\n", "");
        let source =
            unlimited.replacen(old, new, 1).replace("\"increment rounds\"", "\"increment rnds\"");
        let found = errors(&source);
        assert_eq!(found.len(), 2, "{new}: {found:#?}");
        assert!(found.iter().any(|error| error.contains(said)), "{new}: {found:#?}");
        assert!(found.iter().any(|error| error.contains("`rnds`")), "{new}: {found:#?}");
    }
    let timer = "state = \"Executing\"\nafter_seconds = 300\non_timeout = \"Fail\"";
    let bad = "state = \"Exec\"\nafter_seconds = \"soon\"\non_timeout = \"Fial\"";
    let found = errors(&SESSION.replace(timer, bad));
    for said in ["`soon` is no number of seconds", "`Exec` is no declared", "is named `Fial`"] {
        assert!(found.iter().any(|error| error.contains(said)), "{said}: {found:#?}");
    }
}

#[test]
fn what_is_declared_twice_is_checked_twice() {
    let twice = "[[action]]\nname = \"Note\"\nfrom = [\"Nowhere\"]\n\n[[integration]]";
    let source = SESSION
        .replace("from = [\"Idle\", \"Executing\"]", "from = [\"Idel\"]")
        .replace("[[integration]]", twice);
    let found = errors(&source);
    for said in ["`Note` is declared twice", "`Idel` is no", "`Nowhere` is no"] {
        assert!(found.iter().any(|error| error.contains(said)), "{said}: {found:#?}");
    }
}

#[test]
fn an_ending_that_a_guard_may_refuse_needs_a_timer_in_its_state() {
    let limited = SESSION.replace("name = \"Stop\"", "name = \"Stop\"\nguard = \"rounds > 9\"");
    let found = errors(&limited);
    assert!(found[0].contains("no timer that always ends it"), "it may be used up: {found:#?}");
    let guarded = limited.replace("max_occurrences = 2\n", "");
    let warned = warnings(&guarded);
    assert!(
        warned.iter().any(|one| one.message.contains("whose guard may refuse it")),
        "{warned:#?}"
    );
    let (untimed, _) = guarded.split_once("[[state_timeout]]").expect("a timer");
    let indefinite = untimed.replace("= [\"Idle\"]\n\n", "= [\"Idle\", \"Executing\"]\n\n");
    let found = errors(&indefinite);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("`on_cancelled` is `Stop`, whose guard may refuse it"), "{found:#?}");
    assert!(found[0].contains("give `Executing` a [[state_timeout]]"), "{found:#?}");
    // A success that is refused becomes a failure.
    let success = indefinite.replace("on_cancelled = \"Stop\"", "on_success = \"Stop\"");
    assert_eq!(errors(&success), Vec::<String>::new());
}

#[test]
fn an_ending_may_not_set_a_variable_to_a_parameter_of_another_type() {
    let (untimed, _) = SESSION.split_once("[[state_timeout]]").expect("a timer");
    let indefinite = untimed.replace("= [\"Idle\"]\n\n", "= [\"Idle\", \"Executing\"]\n\n");
    let needs = |action: &str, var: &str, param: &str| {
        let effect = format!("{{ type = \"set\", var = \"{var}\", param = \"{param}\" }}");
        let params = format!("params = [\"{param}\"]\neffect = {effect}");
        let name = format!("name = \"{action}\"");
        errors(&indefinite.replacen(&name, &format!("{name}\n{params}"), 1))
    };
    for (action, var, param) in [
        ("HandlerTimedOut", "rounds", "dying_span"),
        ("Fail", "rounds", "error"),
        ("Stop", "rounds", "cause"),
    ] {
        let found = needs(action, var, param);
        assert!(!found.is_empty(), "{action} with {param}");
        let said = format!("whose parameter `{param}` this ending gives with another type");
        assert!(found[0].contains(&said), "{found:#?}");
    }
    for (action, var, param) in [
        ("Finish", "rounds", "note"),
        ("Fail", "note", "error"),
        ("Stop", "note", "cause"),
        // Without it, the variable keeps its value.
        ("HandlerTimedOut", "rounds", "tries"),
        ("Stop", "rounds", "attempt"),
    ] {
        assert_eq!(needs(action, var, param), Vec::<String>::new(), "{action} with {param}");
    }
    // Nothing else names the action of the timeout here.
    let interrupted = "on_cancelled = \"Stop\"\non_interrupted = \"Stop\"";
    let timeout_alone = indefinite.replace("on_cancelled = \"Stop\"", interrupted).replacen(
        "name = \"HandlerTimedOut\"",
        "name = \"HandlerTimedOut\"\nparams = [\"attempt\"]\n\
         effect = { type = \"set\", var = \"rounds\", param = \"attempt\" }",
        1,
    );
    assert_eq!(errors(&timeout_alone), Vec::<String>::new());
}

#[test]
fn a_recorded_spec_stays_readable_after_checks_become_stricter() {
    let limited = SESSION.replace("name = \"Stop\"", "name = \"Stop\"\nguard = \"rounds > 9\"");
    assert!(Spec::parse_with(&limited, Strictness::Strict).spec.is_none());
    assert!(Spec::parse_recorded(&limited, RulesVersion::CURRENT).spec.is_some());
}

#[test]
fn reads_the_looser_spellings_of_users() {
    let source = SESSION
        .replace("\"trigger run_tools\"", "\" trigger   run_tools \"")
        .replace("delay_seconds = 60", "delay_seconds = 0")
        .replace("max_occurrences = 2", "max_occurrences = \"1\"");
    let spec = read(&source);
    assert_eq!(spec.actions["ProcessToolCalls"].dispatches, ["run_tools"]);
    assert!(matches!(spec.actions["Later"].effects[..], [Effect::Schedule { delay_ms: 0, .. }]));
    assert_eq!(spec.timeouts["Executing"].max_occurrences, Some(1));
}

#[test]
fn syntax_errors_say_what_to_write() {
    for (old, new, expected) in [
        (
            "initial = \"Idle\"",
            "initial = Idle",
            "5:11: error: invalid float, expected `inf`\n  help: if it is a text, quote it: \"Idle\"",
        ),
        ("params = [\"text\"]", "params = [text]", "help: if it is a text, quote it: \"text\""),
        (
            "[[action]]\nname = \"Pause\"",
            "[action]\nname = \"Pause\"",
            "error: `[action]` and `[[action]]` are both in the file\n  help: write each of them as `[[action]]`",
        ),
        ("to = \"Done\"", "to: \"Done\"", "help: write KEY = VALUE"),
    ] {
        assert!(SESSION.contains(old), "{old}");
        let found = Spec::parse(&SESSION.replacen(old, new, 1)).diagnostics;
        let [one] = &found[..] else { panic!("{new}: {found:#?}") };
        assert!(one.to_string().contains(expected), "{new}: {one}");
    }
}

#[test]
fn two_syntax_errors_are_two_diagnostics() {
    let found = Spec::parse("[automaton]\nname = \nstates = [\"x\"]\ninitial = = 3\n").diagnostics;
    assert!(found.len() >= 2, "{found:#?}");
    assert_eq!(found[0].line, 2, "{found:#?}");
}

#[test]
fn valid_but_doubtful_specs_are_warned_of() {
    for (old, new, expected) in [
        (
            "reset_on = [\"PartnerReplied\"]",
            "reset_on = [\"Note\"]",
            "obsolete: `Note` in `reset_on`",
        ),
        (
            "reset_on = [\"PartnerReplied\"]",
            "reset_on = [\"Stop\"]",
            "obsolete: `Stop` in `reset_on`",
        ),
        ("deadline = \"900s\"", "", "declares no deadline and gets 120 s"),
        (
            "deadline = \"900s\"",
            "deadline = \"900s\"\non_sucess = \"Finish\"",
            "did you mean `on_success`?",
        ),
        ("deadline = \"900s\"", "deadline = \"900s\"\nturns = true", "did you mean `turn`?"),
        (
            "deadline = \"900s\"",
            "deadline = \"900s\"\ncontinue = true",
            "did you mean `continues`?",
        ),
        (
            "deadline = \"900s\"",
            "deadline = \"900s\"\nconfig = { timeout_secs = \"5\" }",
            "`timeout_secs` in the config of integration `run_tools` is no deadline",
        ),
        (
            "name = \"Stop\"",
            "name = \"Stop\"\nguard = \"rounds > 0\"",
            "`on_cancelled` is `Stop`, whose guard may refuse it\n  help: then another ending is taken, or, if each is refused, none, until the timer",
        ),
        (
            "\"Stopped\"]\ninitial",
            "\"Stopped\", \"Limbo\"]\ninitial",
            "no action leads to state `Limbo`",
        ),
        ("trigger run_tools\", \"", "", "integration `run_tools` is never started"),
        (
            "name = \"Fail\"",
            "name = \"Fail\"\nguard = \"rounds > 0\"",
            "the timer of state `Executing` takes `Fail`, whose guard may refuse it",
        ),
        (
            "on_timeout = \"Fail\"\nreset_on = [\"PartnerReplied\"]\nparams = { reason = \"idle\" }",
            "on_timeout = \"Count\"\nparams = { rounds = \"many\" }\n[[action]]\nname = \"Count\"\n\
             from = [\"Executing\"]\nto = \"Idle\"\nparams = [\"rounds\"]",
            "the timer of state `Executing` takes `Count`, which refuses the parameter `rounds`",
        ),
        (
            "type = \"string\"",
            "type = \"strng\"",
            "no variable is of type `strng`, so it is a string\n  help: did you mean `string`?",
        ),
        (
            "param = \"text\"",
            "param = \"txt\"",
            "the action has no parameter `txt`\n  help: did you mean `text`?",
        ),
        (
            "to = \"Done\"",
            "to = \"Done\"\nguard = \"rouds > 1\"",
            "guard: no variable is named `rouds`\n  help: did you mean `rounds`? Otherwise, it reads",
        ),
        (
            "params = [\"text\"]",
            "params = [\"text\", { name = \"rounds\", type = \"bool\" }]",
            "parameter `rounds` is a bool, and variable `rounds` is a counter",
        ),
        (
            "on_timeout = \"Fail\"\nreset_on = [\"PartnerReplied\"]\nparams = { reason = \"idle\" }",
            "on_timeout = \"Note\"\nmax_occurrences = 2\nparams = { text = \"still here\" }",
            "takes `Note`, which stays in the state, and no more often than `max_occurrences`",
        ),
        (
            "action = \"ProcessToolCalls\", delay_seconds = 60",
            "action = \"Later\", delay_seconds = 0",
            "`Later` is sent again at once, forever",
        ),
    ] {
        let unlimited = SESSION.replace("max_occurrences = 2\n", "");
        let source =
            unlimited.replacen(old, new, 1).replace("[\"Idle\"]\n\n", "[\"Idle\", \"Limbo\"]\n\n");
        let source = if source.contains("\"Limbo\"]\ninitial") {
            source
        } else {
            source.replace(", \"Limbo\"", "")
        };
        let found = warnings(&source);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|said| said.contains(expected)), "{new}: {said:#?}");
    }
    assert_eq!(warnings(SESSION), [], "the session itself is beyond doubt");
}

#[test]
fn a_key_of_many_dots_is_refused_and_not_a_stack_overflow() {
    let dots = "a.".repeat(200_000);
    for source in [
        format!("{dots}a = 1"),
        format!("[{dots}a]"),
        format!("x = {{ {dots}a = 1 }}"),
        format!("x = [{{ \"y\" . {dots}a = 1 }}]"),
        format!("x = {{ \"y\" = 1, {dots}a = 1 }}"),
        format!("x = {{ y = \"\", {} = 1 }}", "\"a\".".repeat(100_000) + "a"),
        format!("x = {{ \"=\" = 1, {} = 1 }}", "\"a\".".repeat(100_000) + "a"),
        format!("x = {}1{}", "{ a.a.a.a.a.a.a.a.a.a.a.a = ".repeat(79), " }".repeat(79)),
        "[".repeat(500_000),
        format!("x = {}", "[".repeat(500_000)),
        format!("x = {}", "{ a = ".repeat(100_000)),
    ] {
        assert!(Spec::parse(&source).spec.is_none());
    }
}

#[test]
fn a_file_that_is_too_large_or_not_text_is_refused() {
    let found = Spec::parse(&" ".repeat(2 << 20)).diagnostics;
    assert!(found[0].message.contains("1048576"), "{found:?}");
    let found =
        Spec::parse_bytes(b"[automaton]\nname = \"\xff\"", Strictness::default()).diagnostics;
    assert_eq!((found[0].line, found[0].column), (2, 9), "{found:?}");
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(source in ".{0,400}") {
        prop_assert!(Spec::parse(&source).spec.is_none());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(source in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Spec::parse_bytes(&source, Strictness::default()).spec.is_none());
    }

    #[test]
    fn no_mutilated_spec_makes_the_parser_panic(
        cuts in proptest::collection::vec((0usize..2_500, 0usize..40, "[\\[\\]{}=\".a0é\n-]{0,4}"), 1..6)
    ) {
        let mut source = SESSION.to_owned();
        for (at, long, put) in cuts {
            let bound = |at: usize| (0..=at.min(source.len())).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0);
            let (start, end) = (bound(at), bound(at + long));
            source.replace_range(start..end, &put);
        }
        for one in Spec::parse(&source).diagnostics {
            prop_assert!(one.span.end <= source.len() && one.line >= 1 && one.column >= 1);
        }
    }
}

/// A spec as users of another runtime write it.
const MOVED: &str = r#"
[automaton]
name = "Agent"
states = ["Created", "Thinking", "Waiting", "Completed", "Failed"]
initial = "Created"
lifecycle_property = "state"

[[state]]
name = "turns"
type = "counter"
initial = "0"

[[action]]
name = "Start"
kind = "input"
from = ["Created", "Waiting"]
to = "Thinking"
effect = "trigger call_model"

[[action]]
name = "Pause"
from = ["Thinking"]
to = "Waiting"

[[action]]
name = "Complete"
from = ["Thinking"]
to = "Completed"

[[action]]
name = "Fail"
from = ["Created", "Thinking"]
to = "Failed"

[[action]]
name = "AgentCompleted"
kind = "output"

[[integration]]
name = "call_model"
trigger = "call_model"
type = "wasm"
module = "model_caller"

[integration.config]
timeout_secs = "300"
api_key = "{secret:key}"
api_key = "{secret:other}"
max_response_bytes = "4194304"
max_memory = "lots"

[[webhook]]
name = "callback"

[[liveness]]
name = "ends"
"#;

/// What is said of a spec that is accepted.
fn said(source: &str) -> Vec<String> {
    warnings(source).iter().map(ToString::to_string).collect()
}

#[test]
fn a_spec_of_another_runtime_loads_with_defaults_that_keep_the_promise() {
    let spec = read(MOVED);
    let of = &spec.integrations["call_model"];
    for ending in [&of.on_failure, &of.on_timeout, &of.on_interrupted, &of.on_cancelled] {
        assert_eq!(ending.as_deref(), Some("Fail"));
    }
    assert!(of.on_success.is_none(), "the result names the action");
    assert_eq!(of.budget_ms, 300_000);
    assert_eq!(of.config["api_key"], "{secret:other}", "the last one holds");
    assert_eq!(of.config["max_response_bytes"], "4194304");
    let terminal: Vec<&str> = spec.terminal.iter().map(String::as_str).collect();
    assert_eq!(terminal, ["Completed", "Failed"]);
    assert!(spec.actions["AgentCompleted"].from.is_empty(), "an output is not taken");
    let said = said(MOVED);
    let expected = [
        "4:11: warning: state `Created` may last forever",
        "4:22: warning: state `Thinking` may last forever",
        "4:34: warning: state `Waiting` may last forever",
        "6:1: warning: kept, but not acted on: `lifecycle_property` in [automaton], `webhook` in \
         the file, `liveness` in the file\n",
        "40:8: warning: integration `call_model` has no `on_failure`; it takes `Fail`\n  help: add \
         `on_failure = \"Fail\"`",
        "40:8: warning: integration `call_model` has no `on_timeout`; if its deadline passes, it \
         takes `Fail`",
        "40:8: warning: integration `call_model` has no `on_success`; if its guest returns an empty \
         action, the entity may stay in `Thinking` forever",
        "45:14: warning: `max_memory` of integration `call_model` is `lots`, and limits nothing",
        "48:1: warning: `api_key` is declared twice in one table; the last one holds",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}\n{expected}");
    }
}

#[test]
fn a_strict_check_turns_what_is_assumed_into_errors() {
    let found = errors(MOVED);
    for said in [
        "`Thinking` may last forever",
        "unknown key `webhook` in the file",
        "no `on_failure`",
        "no `on_timeout`",
        "declared twice in one table",
        "limits nothing",
    ] {
        assert!(found.iter().any(|error| error.contains(said)), "{said}: {found:#?}");
    }
    let declared = MOVED.replace("initial = \"Created\"", "initial = \"Created\"\nstrict = true");
    let parsed = Spec::parse(&declared);
    let errors = parsed.diagnostics.iter().filter(|one| one.severity == Severity::Error);
    assert_eq!(errors.count(), found.len());
    // What a journal holds was valid when it was loaded.
    assert!(Spec::parse_recorded(&declared, RulesVersion::CURRENT).spec.is_some());
}

#[test]
fn on_timeout_is_the_declared_action_for_it_if_the_states_take_that() {
    let timed_out =
        "[[action]]\nname = \"HandlerTimedOut\"\nfrom = [\"Thinking\"]\n\n[[integration]]";
    for (from, expected) in [("Thinking", "HandlerTimedOut"), ("Created", "Fail")] {
        let timed_out = timed_out.replace("Thinking", from);
        let spec = read(&MOVED.replacen("[[integration]]", &timed_out, 1));
        let of = &spec.integrations["call_model"];
        assert_eq!(of.on_failure.as_deref(), Some("Fail"));
        for ending in [&of.on_timeout, &of.on_interrupted, &of.on_cancelled] {
            assert_eq!(ending.as_deref(), Some(expected), "{from}");
        }
    }
}

#[test]
fn a_handler_without_a_failure_action_is_an_error_that_says_which_line_to_add() {
    let none = MOVED.replace("name = \"Fail\"", "name = \"Break\"");
    let second = "[[action]]\nname = \"ModelFailed\"\nfrom = [\"Thinking\"]\n\n[[integration]]";
    let several = MOVED.replacen("[[integration]]", second, 1);
    for (source, why) in [
        (none, "no action of state `Thinking`"),
        (several, "several actions for failures: `Fail`, `ModelFailed`"),
    ] {
        let found = Spec::parse(&source).diagnostics;
        let errors = found.iter().filter(|one| one.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(errors[0].contains(why), "{errors:#?}");
        assert!(errors[0].contains("help: add `on_failure = \"ACTION\"` to it"), "{errors:#?}");
    }
}

#[test]
fn a_fault_of_an_integration_is_reported_once() {
    let named = "name = \"call_model\"\ntrigger = \"call_model\"\n";
    assert!(MOVED.contains(named));
    for (from, to, fault) in [
        ("module = \"model_caller\"", "", "integration `call_model` has no `module`"),
        (named, "", "[[integration]] has no `name`"),
        (named, "name = \"call_model\"\ntrigger = 5\n", "must be a string, and is an integer"),
        ("to = \"Thinking\"", "to = \"Thinkin\"", "`Thinkin` is no declared state"),
    ] {
        let found = Spec::parse(&MOVED.replace(from, to)).diagnostics;
        let errors = found.iter().filter(|one| one.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(errors[0].contains(fault), "{errors:#?}");
        let all: Vec<String> = found.iter().map(ToString::to_string).collect();
        let follows = |one: &String| {
            one.contains("no integration has the trigger") || one.contains("does not accept")
        };
        assert!(!all.iter().any(follows), "{all:#?}");
    }
}

/// What is reported of `source` and not of `valid`, without places.
fn added(valid: &str, source: &str) -> Vec<String> {
    let all = |source: &str| {
        let found = Spec::parse(source).diagnostics;
        found.into_iter().map(|one| (one.line, one.message, one.help.unwrap_or_default()))
    };
    let known: Vec<String> = all(valid).map(|(_, message, _)| message).collect();
    let new = all(source).filter(|(_, message, _)| !known.contains(message));
    new.map(|(line, message, help)| format!("{line}: {message}; {help}")).collect()
}

#[test]
fn each_fault_is_reported_once_and_where_it_is() {
    let used = SESSION.replace("to = \"Done\"", "to = \"Done\"\nguard = \"rounds > 1\"");
    let failure = "name = \"Fail\"\nfrom = [\"Executing\"]";
    let unnamed = SESSION.replace("on_failure = \"Fail\"\n", "");
    let timed = "name = \"HandlerTimedOut\"\nfrom = [\"Executing\"]";
    let default = SESSION.replace("on_timeout = \"HandlerTimedOut\"\n", "");
    for (valid, old, new, expected) in [
        (
            &used,
            "type = \"counter\"",
            "type = 5",
            "11: `type` in variable `rounds` must be a string",
        ),
        (&used, "type = \"counter\"\n", "", "9: variable `rounds` has no `type`; add `type"),
        (
            &used,
            "name = \"rounds\"",
            "nam = \"rounds\"",
            "10: unknown key `nam` in [[state]]; did you mean `name`?",
        ),
        (
            &used,
            "type = \"counter\"",
            "type = \"conter\"",
            "11: no variable is of type `conter`, so it is a counter; did",
        ),
        (
            &used,
            "[[state]]\nname = \"rounds\"\ntype = \"counter\"\n",
            "",
            "19: no variable is named `rounds`, so it is a counter; declare it",
        ),
        (
            &used,
            "\"increment rounds\"",
            "\"rounds += \"",
            "22: a value is missing in `rounds +=`; write a whole number",
        ),
        (
            &used,
            "\"increment rounds\"",
            "\"increment note\"",
            "22: `note` is no counter; it is a string",
        ),
        (
            &used,
            "states = [\"Idle\", \"Executing\", \"Done\", \"Failed\", \"TimedOut\", \"Stopped\"]",
            "states = \"Idle, Done\"",
            "4: `states` in [automaton] is one text; write each",
        ),
        (
            &unnamed,
            failure,
            "name = \"Fail\"\nfrom = [\"Executin\"]",
            "47: `Executin` is no declared state; did you mean",
        ),
        (
            &used,
            "name = \"Fail\"",
            "nme = \"Fail\"",
            "47: unknown key `nme` in [[action]]; did you mean `name`?",
        ),
        (
            &used,
            "state = \"Executing\"",
            "state = \"Executin\"",
            "73: `Executin` is no declared state; did you mean",
        ),
        (
            &used,
            "on_timeout = \"Fail\"",
            "on_timout = \"Fail\"",
            "75: unknown key `on_timout` in [[state_timeout]]; did you mean `on_timeout`?",
        ),
        (
            &used,
            "allow_indefinite_states = [\"Idle\"]",
            "allow_indefinite_states = [\"Idel\"]",
            "7: `Idel` is no declared state; did you mean `Idle`?",
        ),
        (
            &used,
            "after_seconds = 300",
            "after_seconds = \"5m\"",
            "74: `after_seconds`: `5m` is no number of seconds; write",
        ),
        (
            &used,
            "trigger = \"run_tools\"",
            "trigger = \"run_tool\"",
            "22: no integration has the trigger `run_tools`, so that an event of this name is emitted; did you mean `run_tool`?",
        ),
        (
            &default,
            timed,
            "name = \"HandlerTimedOut\"\nfrom = [\"Idle\"]",
            "61: integration `run_tools` has no `on_timeout`; if its deadline passes, it takes `Fail`; add `on_timeout = \"Fail\"`, or add `Executing` to `from` of `HandlerTimedOut`",
        ),
        (
            &used,
            "after_seconds = 300",
            "after = 300",
            "74: unknown key `after` in [[state_timeout]]; did you mean `after_seconds`?",
        ),
        (
            &used,
            "params = [\"text\"]",
            "params = [5]",
            "27: `params` in action `Note` must be a list of names",
        ),
        (
            &used,
            "params = [\"text\"]",
            "params = \"text, more\"",
            "27: a parameter of action `Note` has a comma in its name; write each",
        ),
        (
            &used,
            "\"increment rounds\"",
            "\"note = ['x']\"",
            "22: `['x']` is no value; write a whole number",
        ),
        (
            &used,
            "[automaton]",
            "[automton]",
            "2: unknown key `automton` in the file; did you mean `automaton`?",
        ),
    ] {
        assert!(valid.contains(old), "{old}");
        let found = added(valid, &valid.replacen(old, new, 1));
        let [one] = &found[..] else { panic!("{new}: {found:#?}") };
        assert!(one.starts_with(expected), "{new}: {one}");
    }
}

#[test]
fn adapters_and_webhooks_load() {
    let adapter = MOVED.replace(
        "type = \"wasm\"\nmodule = \"model_caller\"",
        "type = \"adapter\"\nadapter = \"http\"\non_failure = \"Fail\"",
    );
    let spec = read(&adapter);
    let of = &spec.integrations["call_model"];
    assert_eq!((of.kind, &*of.module), (IntegrationKind::Adapter, "adapter:http"));
    assert!(said(&adapter).iter().any(|one| one.contains("is an adapter")));
    // Without a type and a module, it is a webhook, and its entity does not wait for it.
    let webhook = MOVED.replace("type = \"wasm\"\nmodule = \"model_caller\"", "");
    let spec = read(&webhook);
    let of = &spec.integrations["call_model"];
    assert_eq!((of.kind, &*of.module), (IntegrationKind::Webhook, "webhook:call_model"));
    assert_eq!(of.endings().count(), 0);
}

#[test]
fn an_action_without_states_is_taken_from_every_state() {
    let source =
        MOVED.replace("from = [\"Created\", \"Thinking\"]\nto = \"Failed\"", "to = \"Failed\"");
    let spec = read(&source);
    assert_eq!(spec.actions["Fail"].from.len(), 5);
    assert!(spec.terminal.is_empty());
    assert!(said(&source).iter().any(|one| one.contains("it is taken from every state")));
}

#[test]
fn the_state_of_a_timer_takes_its_action() {
    let timer =
        "[[state_timeout]]\nstate = \"Waiting\"\nafter_seconds = 5\non_timeout = \"Fail\"\n";
    let source = format!("{MOVED}\n{timer}");
    assert!(read(&source).actions["Fail"].is_taken_from("Waiting"));
    assert!(said(&source).iter().any(|one| one.contains("state `Waiting` does not accept `Fail`")));
}

#[test]
fn failures_are_routed_by_their_category() {
    let triggers = |routes: &str| {
        let start = "to = \"Thinking\"\n\n[[action.triggers]]\nname = \"call_model\"\nkind = \
                     \"wasm\"\nmodule = \"model_caller\"\n";
        let (actions, _) = MOVED.split_once("[[integration]]").expect("an integration");
        let effect = "to = \"Thinking\"\neffect = \"trigger call_model\"\n";
        assert!(actions.contains(effect));
        actions.replacen(effect, &format!("{start}{routes}"), 1)
    };
    let route = |category: &str, to: &str| {
        format!("[[action.triggers.failure_routes]]\ncategory = \"{category}\"\n{to}\n")
    };
    let routes =
        route("transient", "action = \"Pause\"") + &route("permanent", "to_state = \"Failed\"");
    let spec = read(&triggers(&routes));
    let of = &spec.integrations["call_model"];
    let routes: Vec<&str> = of.failure_routes.values().map(|action| &**action).collect();
    assert_eq!(routes, ["Pause", "Fail"]);
    assert_eq!(of.on_failure.as_deref(), Some("Fail"));
    for (routes, said) in [
        (route("transitory", "action = \"Pause\""), "did you mean `transient`?"),
        (route("budget", ""), "names one of `action` and `to_state`"),
        (route("budget", "to_state = \"Created\""), "no action leads from"),
        (route("budget", "action = \"Nope\""), "`failure_routes` is `Nope`, which is not declared"),
        (
            route("budget", "action = \"Fail\"") + &route("budget", "action = \"Fail\""),
            "two routes",
        ),
    ] {
        let found = Spec::parse(&triggers(&routes)).diagnostics;
        let errors = found.iter().filter(|one| one.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{said}: {errors:#?}");
        assert!(errors[0].contains(said), "{said}: {errors:#?}");
    }
}
