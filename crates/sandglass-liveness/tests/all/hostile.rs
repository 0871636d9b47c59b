//! Hostile specs, written to occupy the host: a check takes time by their size, and what is accepted is
//! decided in bounded time.

use std::time::Duration;

use sandglass_liveness::spec::DIAGNOSTICS_MAX;
use sandglass_liveness::{Severity, Spec};
use sandglass_model::{Clock as _, SystemClock};

/// What begins a spec with these states.
fn head(states: usize) -> String {
    let names: Vec<String> = (0..states).map(|state| format!("\"s{state}\"")).collect();
    let states = names.join(",");
    format!(
        "[automaton]\nname = \"X\"\ninitial = \"s0\"\nstates = [{states}]\n\
         allow_indefinite_states = [{states}]\n"
    )
}

fn action(name: &str, from: &[&str], more: &str) -> String {
    format!("[[action]]\nname = \"{name}\"\nfrom = {from:?}\n{more}\n")
}

/// `count` times `part`, with the numbers from 0.
fn repeated(count: usize, part: impl Fn(usize) -> String) -> String {
    (0..count).map(part).collect()
}

fn integration(number: usize, more: &str) -> String {
    format!("[[integration]]\nname = \"i{number}\"\nmodule = \"m\"\ndeadline = \"1s\"\n{more}\n")
}

/// Specs by what is repeated in them, and how often.
type Shape = (&'static str, fn(usize) -> String);

const SHAPES: [Shape; 10] = [
    ("names in one guard that are not known", |count| {
        let guard = repeated(count, |number| format!("n{number} and "));
        head(2) + &action("Go", &["s0"], &format!("to = \"s1\"\nguard = \"{guard}true\""))
    }),
    ("states in one guard that are not declared", |count| {
        let states = repeated(count, |number| format!("'n{number}',"));
        let guard = format!("guard = \"status in [{states}]\"");
        head(2) + &action("Go", &["s0"], &format!("to = \"s1\"\n{guard}"))
    }),
    ("names in effects that are not known", |count| {
        let of = |number| {
            format!("[\"v{number} += 1\", \"trigger t{number}\", \"schedule z{number} 1\"]")
        };
        let effect = |number| format!("effect = {}", of(number));
        head(2)
            + &repeated(count / 20, |number| {
                action(&format!("a{number}"), &["s0"], &effect(number))
            })
    }),
    ("keys and sections that are not known", |count| {
        head(2)
            + &repeated(count, |number| format!("k{number} = 1\n"))
            + &repeated(count, |number| format!("[q{number}]\n"))
    }),
    ("states that an invariant names again and again", |count| {
        let invariant = "[[invariant]]\nname = \"ended\"\nassert = \"no_further_transitions\"\n";
        let actions = repeated(500, |number| action(&format!("a{number}"), &["s0"], "to = \"s1\""));
        format!("{}{actions}{invariant}when = [{}]\n", head(2), "\"s1\",".repeat(count))
    }),
    ("actions that send the next one at once", |count| {
        let next = |number| format!("to = \"s0\"\neffect = \"schedule a{} 0\"", number + 1);
        let chain =
            repeated(count / 20, |number| action(&format!("a{number}"), &["s0"], &next(number)));
        head(2) + &chain + &action(&format!("a{}", count / 20), &["s0"], "to = \"s0\"")
    }),
    ("states in which integrations start", |count| {
        let states: Vec<String> = (0..count / 40).map(|number| format!("s{number}")).collect();
        let from: Vec<&str> = states.iter().map(String::as_str).collect();
        let integrations =
            repeated(60, |number| integration(number, "trigger = \"t\"\non_failure = \"a1\""));
        head(count / 40)
            + &repeated(60, |number| action(&format!("a{number}"), &from, "effect = \"trigger t\""))
            + &integrations
    }),
    ("configuration", |count| {
        let config = repeated(count, |number| format!("kdl{number} = 1\n"));
        head(2)
            + &action("Go", &["s0"], "to = \"s1\"")
            + &integration(0, "trigger = \"Go\"")
            + &config
    }),
    ("states that an action names again and again", |count| {
        format!(
            "{}[[action]]\nname = \"Go\"\nfrom = [{}\"s0\"]\n",
            head(900),
            "\"s899\",".repeat(count)
        )
    }),
    ("tables that repeat keys", |count| {
        head(2)
            + &repeated(count, |number| format!("x{number} = 1\n"))
            + &"[[z]]\nk = 1\nk = 2\n".repeat(count)
    }),
];

/// The shortest of three checks.
fn check_time(source: &str) -> Duration {
    let clock = SystemClock::new();
    let times = std::iter::repeat_with(|| {
        let begun = clock.now();
        let parsed = Spec::parse(source);
        assert!(parsed.diagnostics.len() <= DIAGNOSTICS_MAX);
        clock.now().since(begun)
    });
    times.take(3).min().unwrap_or_default()
}

#[test]
fn a_check_takes_time_by_the_size_of_the_file() {
    for (what, of) in SHAPES {
        // Sixteen times as long if it took the square, whatever else the machine does at one of these
        // attempts. A short time is mostly noise.
        let times = || [5_000, 20_000].map(|count| check_time(&of(count)));
        let is_linear =
            |[small, large]: [Duration; 2]| large <= 10 * small.max(Duration::from_millis(20));
        let is_linear = std::iter::repeat_with(times).take(5).any(is_linear);
        assert!(
            is_linear,
            "{what} of 20,000 took more than ten times as long as 5,000, five times"
        );
    }
}

#[test]
fn entries_that_are_too_many_are_the_only_mistake() {
    let variable = |number| format!("[[state]]\nname = \"v{number}\"\ntype = \"string\"\n");
    let trigger = |number| format!("[[action.triggers]]\nname = \"t{number}\"\nmodule = \"m\"\n");
    let actions =
        |count| repeated(count, |number| action(&format!("a{number}"), &["s0"], "guard = \"?\""));
    let go = || action("Go", &["nowhere"], "");
    for (source, expected) in [
        (repeated(1_001, variable) + &go(), "1000 variables"),
        (actions(1_001), "1000 actions"),
        (repeated(1_001, |number| integration(number, "")) + &go(), "1000 integrations"),
        (go() + &repeated(1_001, trigger), "1000 integrations"),
    ] {
        let found = Spec::parse(&(head(2) + &source)).diagnostics;
        let [only] = &found[..] else { panic!("{expected}: {found:#?}") };
        assert!(only.message.contains(expected), "{only}");
    }
    let (back, most) = (action("Back", &["s1"], "to = \"s0\""), repeated(1_000, variable));
    let parsed = Spec::parse(&(head(2) + &most + &back));
    assert!(parsed.spec.is_some(), "{:#?}", parsed.diagnostics);
    let one_more = action("Go", &["s0"], "to = \"s1\"\neffect = \"more += 1\"");
    refused(&(head(2) + &most + &back + &one_more), "1000 variables at most");
}

fn refused(source: &str, expected: &str) {
    let parsed = Spec::parse(source);
    assert!(parsed.spec.is_none(), "{expected}");
    let mut errors = parsed.diagnostics.iter().filter(|one| one.severity == Severity::Error);
    assert!(errors.any(|one| one.message.contains(expected)), "{:#?}", parsed.diagnostics);
}

#[test]
fn what_one_decision_evaluates_and_starts_is_bounded() {
    let list = "[[state]]\nname = \"l\"\ntype = \"list\"\n";
    let go = |more: &str| head(2) + list + &action("Go", &["s0"], &format!("to = \"s1\"\n{more}"));
    let guard =
        |terms: usize| format!("guard = \"{}true\"", "status == 's0' and ".repeat(terms - 1));
    assert!(Spec::parse(&go(&guard(1_024))).spec.is_some());
    refused(&go(&guard(1_025)), "1024 terms at most, and this one has 1025");
    let searches =
        |count: usize| format!("guard = \"{}\"", vec!["!('x' in l)"; count].join(" and "));
    assert!(Spec::parse(&go(&searches(16))).spec.is_some());
    refused(&go(&searches(17)), "and this one has 1088");
    let items = format!("guard = \"status in [{}]\"", "'s0',".repeat(1_025));
    refused(&go(&items), "and this one has 1025");
    let invariants = |count: usize| {
        let assert = vec!["!('x' in l)"; 16].join(" and ");
        repeated(count, |number| {
            format!("[[invariant]]\nname = \"i{number}\"\nassert = \"{assert}\"\n")
        })
    };
    assert!(Spec::parse(&(go("") + &invariants(8))).spec.is_some());
    refused(&(go(&guard(1)) + &invariants(8)), "evaluates 8193 terms, and may evaluate 8192");

    let starting = |count| {
        let ends = action("Back", &["s1"], "to = \"s0\"");
        let started = |number| integration(number, "trigger = \"t\"\non_failure = \"Back\"");
        go("effect = \"trigger t\"") + &ends + &repeated(count, started)
    };
    assert!(Spec::parse(&starting(64)).spec.is_some());
    refused(&starting(65), "an action may start 64 integrations at most");

    let counter = |number| format!("[[state]]\nname = \"c{number}\"\ntype = \"counter\"\n");
    let counting =
        |count| head(2) + &repeated(count, counter) + &action("AddItem", &["s0"], "to = \"s1\"");
    assert!(Spec::parse(&counting(63)).spec.is_some());
    refused(&counting(64), "would increment 65 counters");
}

#[test]
fn an_error_is_listed_however_many_warnings_there_are() {
    let unknown =
        "guard = \"".to_owned() + &repeated(300, |number| format!("n{number} and ")) + "true\"";
    let late = action("Late", &["s0"], "to = \"nowhere\"");
    let source = head(2) + &action("Go", &["s0"], &unknown) + &late;
    refused(&source, "`nowhere` is no declared state");
    let found = Spec::parse(&source).diagnostics;
    assert_eq!(found.len(), DIAGNOSTICS_MAX);
    let last = found.last().map(ToString::to_string).unwrap_or_default();
    assert!(last.contains("or more further errors and warnings are not listed"), "{last}");
}

#[test]
fn actions_that_come_back_at_once_are_found_and_those_that_lead_there_are_not() {
    let sends = |to: &str, next: &str| format!("{to}effect = \"schedule {next} 0\"");
    let source = head(3)
        + &action("Into", &["s0"], &sends("to = \"s1\"\n", "Round"))
        + &action("Round", &["s1"], &sends("to = \"s2\"\n", "Trip"))
        + &action("Trip", &["s2"], &sends("to = \"s1\"\n", "Round"))
        + &action("Stay", &["s0", "s1"], &sends("", "Stay"))
        + &action("Once", &["s0"], &sends("to = \"s1\"\n", "Once"))
        + &action("Guarded", &["s0"], &sends("guard = \"status == 's0'\"\n", "Guarded"));
    let parsed = Spec::parse(&source);
    assert!(parsed.spec.is_some(), "{:#?}", parsed.diagnostics);
    let again =
        parsed.diagnostics.iter().filter_map(|one| one.message.split_once(" is sent again"));
    let again: Vec<&str> = again.map(|(action, _)| action).collect();
    assert_eq!(again, ["`Round`", "`Trip`", "`Stay`"]);
}
