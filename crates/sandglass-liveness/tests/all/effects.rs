//! What specs state about data: parameters that set variables, fields, effects on numbers and lists,
//! times in fields, and invariants.

use sandglass_liveness::decide::{PARAMS_MAX_BYTES, VARIABLES_MAX_BYTES};
use sandglass_liveness::entity::FIELDS_MAX_BYTES;
use sandglass_liveness::spec::Strictness;
use sandglass_liveness::{Entity, Input, Refusal, Severity, Spec};
use sandglass_model::{Decision, Event, Object, Outcome, RulesVersion};
use serde_json::{Value, json};

use crate::generated::divergences;
use crate::session::{Life, completed, timed_out_of};

const ORDER: &str = r#"
[automaton]
name = "Session"
states = ["Draft", "Checking", "Paid", "Failed"]
initial = "Draft"
terminal = ["Paid", "Failed"]
allow_indefinite_states = ["Draft", "Checking"]

[[state]]
name = "items"
type = "counter"
initial = "0"

[[state]]
name = "score"
type = "float"
initial = "-1.5"

[[state]]
name = "paid"
type = "bool"
initial = "no"

[[state]]
name = "carrier"
type = "string"

[[state]]
name = "tags"
type = "set"
initial = "[new, 'by web']"

[[action]]
name = "Edit"
from = ["Draft", "Checking"]
params = ["items", { name = "score", type = "float" }, "paid", "carrier", "tags", "note"]

[[action]]
name = "Add"
from = ["Draft"]
params = ["count", "tags", "tags_index"]
effect = [
  { type = "increment", var = "items", by = "count" },
  { type = "list_append", var = "tags" },
  { type = "list_remove_at", var = "tags" },
]

[[action]]
name = "Move"
from = ["Draft"]
params = ["lost"]
effect = [
  "items += 5", "items -= params.lost", "decrement items", "increment items by lost",
  "append(tags, 'moved, far')", "remove_at(tags, 0)", "carrier = 'ups'", "score = items", "set paid true",
  { type = "decrement", var = "score", by = 100 },
]

[[action]]
name = "Remind"
from = ["Draft"]
params = ["at"]
effect = ["schedule_at('Move', at)", "schedule_at at Add", { type = "schedule_at", action = "Edit", field = "carrier" }]

[[action]]
name = "Check"
from = ["Draft"]
to = "Checking"
params = ["Reference"]
guard = ["items >= 0", { type = "max_count", var = "items", max = 100 }, { type = "list_length_min", var = "tags", min = 0 }]
effect = "trigger check"

[[action]]
name = "Pay"
from = ["Draft", "Checking"]
to = "Paid"
params = ["paid"]

[[action]]
name = "Fail"
from = ["Draft", "Checking"]
to = "Failed"

[[action]]
name = "HandlerTimedOut"
from = ["Checking"]
to = "Paid"

[[invariant]]
name = "paid_in_full"
when = ["Paid"]
assert = "paid && items > 0"
message = "an order without items is not paid"

[[invariant]]
name = "few_items"
assert = "items <= 50"

[[invariant]]
name = "final"
when = ["Paid", "Failed"]
assert = "no_further_transitions"

[[field_invariant]]
name = "dated_note"
when = { not = { field = "note", empty = true } }
require = { any_of = [{ field = "carrier", equals = "ups" }, { not = { field = "Status", equals = "Draft" } }] }

[[field_invariant]]
name = "known_reference"
assert = "status in ['Checking'] => Reference != null"

[[integration]]
name = "check"
module = "check"
deadline = "900s"
on_success = "Pay"
on_failure = "Fail"
on_timeout = "HandlerTimedOut"
on_cancelled = "Fail"
"#;

fn params(values: Value) -> Object {
    match values {
        Value::Object(values) => values.into_iter().collect(),
        other => panic!("{other}"),
    }
}

fn take(life: &mut Life, action: &str, values: Value) -> Result<usize, Refusal> {
    life.act_with(action, params(values)).map(|commands| commands.len())
}

fn variable(life: &Life, name: &str) -> Value {
    life.entity().variables[name].clone()
}

#[test]
fn a_parameter_sets_the_variable_of_its_name() {
    let mut life = Life::of(ORDER);
    assert_eq!(variable(&life, "tags"), json!(["new", "by web"]));
    assert_eq!((variable(&life, "score"), variable(&life, "paid")), (json!(-1.5), json!(false)));
    let all = json!({ "items": "3", "score": 2.5, "paid": "true", "carrier": 7, "tags": ["x"] });
    take(&mut life, "Edit", all).expect("all fit");
    let variables = json!(life.entity().variables);
    assert_eq!(
        variables,
        json!({ "items": 3, "score": 2.5, "paid": true, "carrier": "7", "tags": ["x"] })
    );
    take(&mut life, "Edit", json!({ "items": null, "other": 1 })).expect("none is required");
    assert_eq!(json!(life.entity().variables), variables, "each keeps its value");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_parameter_that_does_not_fit_is_refused_with_both_types() {
    for (values, said) in [
        (
            json!({ "items": -1 }),
            "`Edit`: parameter `items` is a number, and variable `items` is a counter: give a whole number from 0",
        ),
        (json!({ "items": [] }), "`items` is a list, and variable `items` is a counter"),
        (
            json!({ "score": "much" }),
            "`score` is a string, and variable `score` is a number: give a number",
        ),
        (
            json!({ "paid": 1 }),
            "`paid` is a number, and variable `paid` is a bool: give true or false",
        ),
        (
            json!({ "tags": "x" }),
            "`tags` is a string, and variable `tags` is a list: give a list of texts",
        ),
    ] {
        let mut life = Life::of(ORDER);
        let refusal = take(&mut life, "Edit", values).expect_err(said).to_string();
        assert!(refusal.contains(said), "{refusal}");
        assert_eq!(life.entity().fields().iter().len(), 0, "it was not taken");
    }
    let refusal = take(&mut Life::of(ORDER), "Add", json!({ "tags_index": "x" })).expect_err("no");
    assert!(
        refusal.to_string().contains("variable `tags` is a list: give a whole number"),
        "{refusal}"
    );
}

#[test]
fn earlier_rules_require_the_parameter_of_a_set() {
    let source = crate::session::SESSION;
    let mut life = Life::under(source, RulesVersion::V2);
    assert!(matches!(life.act("Note"), Err(Refusal::BadParam { .. })));
    let mut life = Life::of(source);
    life.act("Note").expect("the variable keeps its value");
    assert_eq!(variable(&life, "note"), json!("none"));
}

#[test]
fn effects_count_and_change_lists() {
    let mut life = Life::of(ORDER);
    take(&mut life, "Add", json!({ "count": "2", "tags": "last", "tags_index": 0 }))
        .expect("taken");
    assert_eq!(variable(&life, "items"), json!(2));
    assert_eq!(variable(&life, "tags"), json!(["by web", "last"]));
    take(&mut life, "Add", json!({ "tags_index": 9 })).expect("nothing is there");
    assert_eq!(variable(&life, "tags"), json!(["by web", "last"]));
    for (value, item) in [(json!(7), "7"), (json!(["a"]), "[\"a\"]")] {
        let mut life = Life::of(ORDER);
        take(&mut life, "Add", json!({ "tags": value })).expect("any value is an item");
        assert_eq!(variable(&life, "tags"), json!(["new", "by web", item]));
    }
    take(&mut life, "Move", json!({ "lost": 100 })).expect_err("few_items");
    take(&mut life, "Move", json!({ "lost": 3 })).expect("taken");
    // 2 + 5 - 3 - 1 + 3, and the number that was set to it stops at 0.
    assert_eq!((variable(&life, "items"), variable(&life, "score")), (json!(6), json!(0)));
    assert_eq!(variable(&life, "tags"), json!(["last", "moved, far"]));
    assert_eq!((variable(&life, "carrier"), variable(&life, "paid")), (json!("ups"), json!(true)));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_list_is_bounded_as_all_variables_are() {
    let mut life = Life::of(ORDER);
    let large = "x".repeat(PARAMS_MAX_BYTES / 2);
    take(&mut life, "Add", json!({ "tags": large })).expect("it fits");
    let refusal = take(&mut life, "Add", json!({ "tags": large })).expect_err("too large");
    assert_eq!(refusal, Refusal::TooLarge { what: "variables", max: VARIABLES_MAX_BYTES });
}

#[test]
fn an_action_is_scheduled_at_the_time_of_a_field() {
    for (at, due) in [
        ("1970-01-01T00:01:00Z", Some(60_000)),
        ("1970-01-01T01:01:00+01:00", Some(60_000)),
        ("1970-01-01T00:01:00", Some(60_000)),
        // It is past, so it is due now.
        ("1969-01-01T00:00:00Z", Some(1_000)),
        ("soon", None),
    ] {
        let mut life = Life::of(ORDER);
        take(&mut life, "Remind", json!({ "at": at })).expect("taken");
        let found: Vec<_> =
            life.entity().schedules().map(|one| (&*one.action, one.due.as_millis())).collect();
        let expected: Vec<_> =
            due.into_iter().flat_map(|due| [("Move", due), ("Add", due)]).collect();
        assert_eq!(found, expected, "{at}; `carrier` is no time");
        assert_eq!(divergences(&life.log), 0);
    }
    let mut life = Life::of(ORDER);
    take(&mut life, "Remind", json!({})).expect("without a time, nothing is scheduled");
    assert_eq!(life.entity().schedules().len(), 0);
}

#[test]
fn fields_are_the_last_parameters_of_all_actions() {
    let mut life = Life::of(ORDER);
    take(&mut life, "Edit", json!({ "items": 1, "carrier": "ups", "paid": true })).expect("taken");
    take(&mut life, "Edit", json!({ "carrier": "dhl", "note": null })).expect("taken");
    take(&mut life, "Check", json!({ "Reference": "r1" })).expect("taken");
    let handler = life.entity().in_flight()[0].clone();
    let then =
        json!({ "items": 1, "carrier": "dhl", "paid": true, "note": null, "Reference": "r1" });
    assert_eq!(json!(handler.fields), then);
    let dispatched = handler.dispatched;
    life.end(dispatched.dispatch, completed(None)).expect("in flight");
    assert_eq!(life.state(), "Paid");
    assert_eq!(life.entity().fields().get("answer"), Some(&json!(42)), "also those of endings");
    assert_eq!(divergences(&life.log), 0);
    let text = life.entity().to_snapshot().expect("settled");
    assert_eq!(Entity::of_snapshot(&text).expect("read").fields(), life.entity().fields());
}

#[test]
fn no_parameter_sets_the_id_or_the_state_that_conditions_read() {
    let mut life = Life::of(ORDER);
    let false_ones = json!({ "paid": true, "Status": "Draft", "Id": "z" });
    let refusal = take(&mut life, "Pay", false_ones.clone()).expect_err("no items");
    assert!(refusal.to_string().contains("`paid_in_full`"), "{refusal}");
    take(&mut life, "Edit", false_ones).expect("it holds in this state");
    let names: Vec<&str> = life.entity().fields().iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["paid"]);
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn fields_are_bounded_and_never_keep_a_handler_from_ending() {
    let mut life = Life::of(ORDER);
    let large = "x".repeat(FIELDS_MAX_BYTES - 100);
    take(&mut life, "Edit", json!({ "a": large })).expect("it fits");
    let refusal = take(&mut life, "Edit", json!({ "b": "x".repeat(300) })).expect_err("too large");
    let what = "parameters of all actions of the entity";
    assert_eq!(refusal, Refusal::TooLarge { what, max: FIELDS_MAX_BYTES });
    take(&mut life, "Check", json!({ "Reference": "r1" })).expect("it fits");
    let dispatched = life.entity().in_flight()[0].dispatched.clone();
    life.end(dispatched.dispatch, Outcome::Interrupted).expect("in flight");
    assert_eq!(life.state(), "Failed");
    let fields = life.entity().fields().to_object();
    assert_eq!(fields["cause"], "interrupted", "the first ones fit: {:?}", fields.keys());
    assert!(!fields.contains_key("error_message"), "{:?}", fields.keys());
    assert_eq!(fields["a"], json!(large));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_transition_that_would_break_an_invariant_is_refused_with_its_name() {
    let mut life = Life::of(ORDER);
    let refusal = take(&mut life, "Pay", json!({ "paid": true })).expect_err("no items");
    let said = "`Pay` would break the invariant `paid_in_full` in state `Paid`: an order without items is not paid";
    assert_eq!(refusal.to_string(), said);
    let refusal = take(&mut life, "Edit", json!({ "items": 51 })).expect_err("too many");
    assert!(
        matches!(refusal, Refusal::InvariantBroken(ref broken) if broken.invariant == "few_items")
    );
    let refusal = take(&mut life, "Edit", json!({ "note": "n" })).expect_err("no carrier");
    assert!(refusal.to_string().contains("`dated_note`"), "{refusal}");
    let refusal = take(&mut life, "Check", json!({})).expect_err("no reference");
    assert!(refusal.to_string().contains("`known_reference`"), "{refusal}");
    assert_eq!((life.state(), life.entity().sequence.0), ("Draft", 0));
    take(&mut life, "Edit", json!({ "items": 50, "note": "n", "carrier": "ups" })).expect("fits");
    take(&mut life, "Pay", json!({ "paid": true })).expect("it holds now");
}

#[test]
fn an_ending_that_would_break_an_invariant_fails_and_says_why() {
    for is_success in [true, false] {
        let mut life = Life::of(ORDER);
        take(&mut life, "Check", json!({ "Reference": "r" })).expect("taken");
        let dispatched = life.entity().in_flight()[0].dispatched.clone();
        let timeout = timed_out_of(&Life::name(), &dispatched);
        let outcome = if is_success { completed(None) } else { timeout };
        let from = life.log.len();
        life.end(dispatched.dispatch, outcome).expect("in flight");
        assert_eq!(life.state(), "Failed");
        let Event::Ended(ended) = &life.log[from].event else { panic!("{:?}", life.log[from]) };
        assert_eq!(ended.decision, Decision::Take { action: "Fail".to_owned() });
        let Event::Transition { params, .. } = &life.log[from + 1].event else { panic!() };
        let said = if is_success { &params["error_message"] } else { &params["refused"] };
        assert!(
            said.as_str().is_some_and(|said| said.contains("invariant `paid_in_full`")),
            "{said}"
        );
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn a_schedule_that_would_break_an_invariant_is_recorded_as_not_taken() {
    let source = ORDER
        .replace("[\"items += 5\"", "[\"items += 50\"")
        .replace("\"items += 5\"", "\"items += 60\"");
    let mut life = Life::of(&source);
    take(&mut life, "Remind", json!({ "at": "1970-01-01T00:00:05Z" })).expect("taken");
    life.now = 5_000;
    life.tell(Input::ScheduleDue { schedule: 0 }).expect("pending");
    let Event::ScheduleDue { taken, .. } = life.log.last().expect("a record").event else {
        panic!()
    };
    assert!(!taken);
}

fn said(source: &str, severity: Severity) -> Vec<String> {
    let found = Spec::parse(source).diagnostics.into_iter();
    found.filter(|one| one.severity == severity).map(|one| one.to_string()).collect()
}

#[test]
fn mistakes_are_reported_with_advice() {
    assert_eq!(said(ORDER, Severity::Error), Vec::<String>::new());
    for (old, new, expected) in [
        ("\"paid && items > 0\"", "\"paid && carrier > 0\"", "assert: `carrier` is no counter"),
        (
            "\"paid && items > 0\"",
            "\"never(Piad)\"",
            "`Piad` is no declared state\n  help: did you mean `Paid`?",
        ),
        ("when = [\"Paid\"]", "when = [\"Piad\"]", "`Piad` is no declared state"),
        ("assert = \"items <= 50\"", "", "invariant `few_items` has no `assert`"),
        (
            "{ not = { field = \"note\", empty = true } }",
            "{ field = \"note\" }",
            "this is no condition on a field",
        ),
        ("{ not = { field = \"note\", empty = true } }", "3", "must be a table, and is an integer"),
        ("type = \"max_count\"", "type = \"cross_entity_state\"", "has no `entity_type`"),
        ("type = \"max_count\"", "type = \"most\"", "no guard is of type `most`"),
        ("var = \"items\", max", "var = \"paid\", max", "`paid` is no counter"),
        ("\"carrier = 'ups'\"", "\"carrier = 3 +\"", "`3 +` is no value"),
        (
            "\"carrier = 'ups'\"",
            "\"paid = 'maybe'\"",
            "`paid` is a bool\n  help: it cannot be \"maybe\"; write true or false",
        ),
        ("\"score = items\"", "\"items = paid\"", "`items` is a counter, and `paid` is a bool"),
        ("\"append(tags, ", "\"append(carrier, ", "`carrier` is no list"),
        ("\"items += 5\"", "\"carrier += 5\"", "`carrier` is no counter"),
        ("schedule_at('Move', at)", "schedule_at('Mve', at)", "no action is named `Mve`"),
        ("\"remove_at(tags, 0)\"", "\"remove(tags)\"", "`remove(tags)` is no effect"),
    ] {
        assert!(ORDER.contains(old), "{old}");
        let errors = said(&ORDER.replacen(old, new, 1), Severity::Error);
        assert!(errors.iter().any(|error| error.contains(expected)), "{new}: {errors:#?}");
    }
    for (old, new, expected) in [
        (
            "when = [\"Paid\", \"Failed\"]",
            "when = [\"Draft\"]",
            "invariant `final`: state `Draft` takes `Add`, so it has further transitions",
        ),
        (
            "\"items += 5\"",
            "\"itms += 5\"",
            "no variable is named `itms`, so it is a counter\n  help: did you mean `items`?",
        ),
        (
            "effect = \"trigger check\"",
            "effect = '[{ type = \"trigger\", name = \"check\" }]'",
            "a list of effects is quoted\n  help: remove the quotes",
        ),
        (
            "assert = \"items <= 50\"",
            "assert = \"ordering(Draft, Paid)\"",
            "invariant `few_items` is not checked",
        ),
        (
            "assert = \"items <= 50\"",
            "assert = \"itms <= 50\"",
            "assert: no variable is named `itms`",
        ),
        ("initial = \"0\"", "initial = \"none\"", "`initial` must be a counter, and is \"none\""),
        (
            "assert = \"items <= 50\"",
            "assert = \"items <= 50 or status == 'Piad'\"",
            "`Piad` is no declared state, so the entity is never in it\n  help: did you mean `Paid`?",
        ),
        (
            "field = \"Status\", equals = \"Draft\"",
            "field = \"Status\", equals = \"Drift\"",
            "`Drift` is no declared state",
        ),
        (
            "guard = [\"items >= 0\"",
            "guard = [{ type = \"state_in\", values = [\"Drift\"] }, \"items >= 0\"",
            "`Drift` is no declared state",
        ),
        (
            "guard = [\"items >= 0\"",
            "guard = [\"not (Status in ['Draft', 'Drift'])\"",
            "`Drift` is no declared state",
        ),
    ] {
        let source = ORDER.replacen(old, new, 1);
        let warnings = said(&source, Severity::Warning);
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{new}: {warnings:#?}");
        assert_eq!(said(&source, Severity::Error), Vec::<String>::new(), "{new}");
        let strict = source.replacen("[automaton]", "[automaton]\nstrict = true", 1);
        assert!(!said(&strict, Severity::Error).is_empty(), "{new}");
    }
    let states = "\"items <= 50 or status in ['Paid', 'Drift', 'Pa']\"";
    let source = ORDER.replacen("\"items <= 50\"", states, 1);
    let found = Spec::parse(&source).diagnostics.into_iter();
    let found = found.filter(|one| one.message.contains("is no declared state"));
    let places: Vec<&str> = found.map(|one| &source[one.span]).collect();
    assert_eq!(places, ["Drift", "Pa"]);
    let warned = said(&ORDER.replace("\"items <= 50\"", "\"items > 0\""), Severity::Warning);
    let expected = "a new entity breaks invariant `few_items`";
    assert!(warned.iter().any(|warning| warning.contains(expected)), "{warned:#?}");
    let many = "\n[[invariant]]\nname = \"more\"\nassert = \"true\"".repeat(257);
    let errors = said(&format!("{ORDER}{many}"), Severity::Error);
    assert!(errors.iter().any(|error| error.contains("256 invariants at most")), "{errors:#?}");
    let many = format!("guard = [{}\"items >= 0\"", "\"paid\", ".repeat(64));
    let errors = said(&ORDER.replacen("guard = [\"items >= 0\"", &many, 1), Severity::Error);
    assert!(errors.iter().any(|error| error.contains("64 items at most")), "{errors:#?}");
}

#[test]
fn quoted_lists_and_undeclared_variables_work_as_others_do() {
    let source = ORDER.replace("\"items += 5\"", "\"itms += 5\"").replace(
        "effect = \"trigger check\"",
        "effect = '[{ type = \"trigger\", name = \"check\" }]'",
    );
    let mut life = Life::of(&source);
    take(&mut life, "Move", json!({})).expect("taken");
    assert_eq!(variable(&life, "itms"), json!(5));
    take(&mut life, "Check", json!({ "Reference": "r" })).expect("taken");
    assert_eq!(life.entity().in_flight_count(), 1);
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_undeclared_variable_is_a_number_if_a_condition_compares_it_with_one() {
    let actions = "[[action]]\nname = \"Weigh\"\nfrom = [\"Draft\"]\nparams = [\"kg\"]\n\
                   effect = [\"weight = params.kg\", \"set most 10\", \"label = params.kg\", \
                   \"text = params.kg\", \"text = 'none'\"]\n\n\
                   [[action]]\nname = \"Send\"\nfrom = [\"Draft\"]\n\
                   guard = \"weight in [3, 4] and most >= weight and label == '3' and (text != 1 or text > 1)\"\n\n";
    let source = ORDER.replacen("[[action]]\n", &format!("{actions}[[action]]\n"), 1);
    let warned = said(&source, Severity::Warning);
    for (name, kind) in
        [("weight", "number"), ("most", "number"), ("label", "string"), ("text", "string")]
    {
        let expected = format!("no variable is named `{name}`, so it is a {kind}");
        assert!(warned.iter().any(|one| one.contains(&expected)), "{expected}: {warned:#?}");
    }
    let mut life = Life::of(&source);
    let refused = take(&mut life, "Send", json!({})).expect_err("it weighs nothing");
    let unmet = "`weight in [3, 4]` does not hold (weight is 0)";
    assert_eq!(refused.unmet(), Some(unmet));
    let refused = take(&mut life, "Weigh", json!({ "kg": "much" })).expect_err("no number");
    assert!(matches!(refused, Refusal::UnfitParam(_)), "{refused}");
    take(&mut life, "Weigh", json!({ "kg": 3 })).expect("taken");
    take(&mut life, "Send", json!({})).expect("the guard holds");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_action_without_effects_that_is_named_after_items_counts_them() {
    let named = "[[state]]\nname = \"total\"\ntype = \"counter\"\n\n\
                 [[action]]\nname = \"QuickAddItems\"\nfrom = [\"Draft\"]\n\n\
                 [[action]]\nname = \"remove_item\"\nfrom = [\"Draft\"]\n\n\
                 [[action]]\nname = \"AddItemLater\"\nfrom = [\"Draft\"]\neffect = \"emit Later\"\n\n\
                 [[action]]\nname = \"Edit\"";
    let source = ORDER.replacen("[[action]]\nname = \"Edit\"", named, 1);
    let steps = ["QuickAddItems", "QuickAddItems", "AddItemLater", "remove_item"];
    let counted = |source: &str| {
        let mut life = Life::of(source);
        for action in steps {
            take(&mut life, action, json!({})).expect(action);
        }
        assert_eq!(divergences(&life.log), 0);
        ["items", "total", "score"].map(|name| life.entity().variables.get(name).cloned())
    };
    let expected = |items, total| [items, Some(json!(total)), Some(json!(-1.5))];
    assert_eq!(counted(&source), expected(Some(json!(1)), 1));
    let warned = said(&source, Severity::Warning);
    let doubt = "action `QuickAddItems` has no `effect`, so it increments `items`, `total`";
    let help = "help: add `effect = [\"increment items\", \"increment total\"]`";
    assert!(warned.iter().any(|one| one.contains(doubt) && one.contains(help)), "{warned:#?}");
    assert!(!warned.iter().any(|one| one.contains("`AddItemLater`")), "{warned:#?}");

    let strict = Spec::parse_with(&source, Strictness::Strict);
    let is_said = strict
        .diagnostics
        .iter()
        .any(|one| one.severity == Severity::Error && one.message == doubt);
    assert!(strict.spec.is_none() && is_said, "{:#?}", strict.diagnostics);
    let strict = source.replace("name = \"Session\"", "name = \"Session\"\nstrict = true");
    for (source, rules) in [(&strict, RulesVersion::V3), (&source, RulesVersion::V2)] {
        let spec = Spec::parse_recorded(source, rules).spec.expect("it was valid");
        assert!(spec.actions["QuickAddItems"].effects.is_empty(), "{rules:?}");
    }

    // Without a declaration, `items` is a counter.
    let other = |item: &str| source.replace("\"items\"", "\"others\"").replace("items ", item);
    let undeclared = other("others ");
    assert_eq!(counted(&undeclared), expected(Some(json!(1)), 1));
}

#[test]
fn an_ending_that_may_break_an_invariant_is_doubtful() {
    let doubt = "`on_timeout` is `HandlerTimedOut`, which may break the invariant `paid_in_full`";
    let warned = said(ORDER, Severity::Warning);
    let of_ending = |one: &&String| one.contains("may break") && one.contains("integration");
    let doubts: Vec<_> = warned.iter().filter(of_ending).collect();
    assert!(matches!(doubts[..], [one] if one.contains(doubt)), "{warned:#?}");
}

/// `FULL` with actions that end `Idle`: `effects`, a timer or a schedule, and an invariant of the state
/// `Failed`.
fn expiring(expire: &str, timer: &str, assert: &str) -> String {
    format!(
        "{FULL}\n[[action]]\nname = \"Expire\"\nfrom = [\"Idle\"]\nto = \"Failed\"\n{expire}\n\n\
         [[action]]\nname = \"Plan\"\nfrom = [\"Idle\"]\neffect = \"schedule Expire 60\"\n\n\
         [[state_timeout]]\nstate = \"Idle\"\nafter_seconds = 60\non_timeout = \"Expire\"\n{timer}\n\n\
         [[invariant]]\nname = \"known\"\nwhen = [\"Failed\"]\nassert = \"{assert}\"\n"
    )
}

#[test]
fn an_action_is_doubtful_only_if_it_may_break_an_invariant() {
    let (ending, timer, schedule) = (
        "`on_failure` is `Fail`, which may break the invariant `known`",
        "the timer of state `Idle` takes `Expire`, which may break the invariant `known`",
        "`Plan` schedules `Expire`, which may break the invariant `known`",
    );
    let params = "params = [\"note\", \"reason\"]";
    let given = "params = { note = \"late\", reason = \"late\" }";
    for (expire, of_timer, assert, expected) in [
        ("", "", "note != ''", &[ending, timer, schedule][..]),
        // Endings give these; others do not.
        ("", "", "error != 'x'", &[ending, timer, schedule]),
        ("", "", "error_message != null", &[ending, timer, schedule]),
        ("effect = \"note = 'late'\"", "", "note != ''", &[ending]),
        ("effect = \"note = ''\"", "", "note != ''", &[ending, timer, schedule]),
        (params, given, "note != ''", &[ending, schedule]),
        (params, given, "reason != null", &[ending, schedule]),
        ("effect = \"append(tags, params.note)\"", "", "len(tags) > 0", &[ending, timer, schedule]),
        ("effect = \"append(tags, 'x')\"", "", "len(tags) >= 0 or true", &[]),
        ("", "", "status == 'Failed'", &[]),
        ("", "", "status != 'Failed' or Status == 'Failed'", &[]),
        (
            "effect = \"spawn('Session', 'Note', child)\"",
            "",
            "child != 'x'",
            &[ending, timer, schedule],
        ),
    ] {
        let warned = said(&expiring(expire, of_timer, assert), Severity::Warning);
        let doubts: Vec<_> = warned.iter().filter(|one| one.contains("may break")).collect();
        assert_eq!(doubts.len(), expected.len(), "{expire} {assert}: {doubts:#?}");
        for doubt in expected {
            assert!(doubts.iter().any(|one| one.contains(doubt)), "{doubt}: {doubts:#?}");
        }
    }
}

#[test]
fn an_action_that_stays_in_its_state_may_break_an_invariant() {
    let stays = FULL.replace("from = [\"Working\"]\nto = \"Failed\"", "from = [\"Working\"]");
    let source = format!("{stays}\n[[invariant]]\nname = \"no_error\"\nassert = \"error == ''\"\n")
        .replace(
            "allow_indefinite_states = [\"Idle\", \"Working\"]",
            "allow_indefinite_states = [\"Idle\", \"Working\", \"Failed\"]",
        );
    let warned = said(&source, Severity::Warning);
    let doubt = "`on_failure` is `Fail`, which may break the invariant `no_error`";
    assert!(warned.iter().any(|one| one.contains(doubt)), "{warned:#?}");
    // An invariant of what the action does not change still holds.
    let warned = said(&source.replace("error == ''", "note == ''"), Severity::Warning);
    assert!(!warned.iter().any(|one| one.contains("may break")), "{warned:#?}");
}

#[test]
fn a_timer_ends_its_state_even_if_its_action_breaks_an_invariant() {
    let mut life = Life::of(&expiring("", "", "note != ''"));
    let timer = life.entity().idle_timer(&life.spec).expect("nothing is in flight");
    life.now += 60_000;
    let idle = Input::StateIdle { generation: timer.generation, idle_ms: 60_000 };
    life.tell(idle).expect("idle");
    assert_eq!(life.state(), "Failed");
    let Some(Event::Transition { params, .. }) = life.log.last().map(|record| &record.event) else {
        panic!("{:?}", life.log)
    };
    let refused = params["refused"].as_str().expect("the record says why");
    assert!(refused.contains("`known`"), "{refused}");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_trigger_starts_its_handler_only_if_its_guard_holds_after_the_action() {
    let guarded = |more: &str| {
        let trigger = format!(
            "[[action.triggers]]\nname = \"more\"\nmodule = \"more\"\ndeadline = \"1s\"\n\
             on_success = \"Pay\"\non_failure = \"Fail\"\n{more}\n\n[[action]]\nname = \"Pay\""
        );
        ORDER.replacen("[[action]]\nname = \"Pay\"", &trigger, 1)
    };
    for (guard, count) in [
        ("", 2),
        ("guard = \"status == 'Checking' && Reference == 'r'\"", 2),
        ("guard = \"Reference in ['x']\"", 1),
        ("to_state = \"Checking\"", 2),
        ("to_state = \"Draft\"", 1),
        ("guard = { type = \"field_in\", field = \"Reference\", values = [\"q\", \"r\"] }", 2),
        ("guard = { type = \"field_equals\", field = \"other\", value = 0 }", 1),
        ("guard = { type = \"bool_false\", field = \"paid\" }", 2),
        ("guard = { type = \"bool_false\", field = \"other\" }", 1),
        (
            "guard = { type = \"any_of\", guards = [{ type = \"bool_true\", field = \"paid\" }, \
             { type = \"not\", guard = { type = \"state_in\", values = [\"Draft\"] } }] }",
            2,
        ),
    ] {
        let source = guarded(guard);
        assert_eq!(said(&source, Severity::Error), Vec::<String>::new(), "{guard}");
        let mut life = Life::of(&source);
        let started = take(&mut life, "Check", json!({ "Reference": "r" })).expect("taken");
        assert_eq!(started, count, "{guard}");
        let dispatched = &life.entity().in_flight()[0].dispatched;
        assert!(!dispatched.config.contains_key("guard"), "{guard}");
        assert_eq!(divergences(&life.log), 0);
    }
    let errors = said(&guarded("to_state = \"Nowhere\""), Severity::Error);
    assert!(errors.iter().any(|error| error.contains("`Nowhere` is no declared")), "{errors:#?}");
}

/// Nothing that an ending may do fits.
const FULL: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working", "Failed"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Working"]

[[state]]
name = "note"
type = "string"

[[state]]
name = "error"
type = "string"

[[action]]
name = "Note"
from = ["Idle"]
params = ["note"]

[[action]]
name = "Start"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Fail"
from = ["Working"]
to = "Failed"
params = ["error"]
effect = [
  "schedule Note 60",
  { type = "spawn", entity_type = "Session", initial_action = "Note", copy_fields = "note" },
]

[[integration]]
name = "work"
module = "worker"
deadline = "900s"
on_failure = "Fail"
"#;

#[test]
fn an_ending_is_taken_without_what_does_not_fit() {
    let mut life = Life::of(FULL);
    let note = "x".repeat(VARIABLES_MAX_BYTES - 60);
    take(&mut life, "Note", json!({ "note": note })).expect("it fits");
    take(&mut life, "Start", json!({})).expect("taken");
    let dispatched = life.entity().in_flight()[0].dispatched.clone();
    life.end(dispatched.dispatch, Outcome::Interrupted).expect("in flight");
    assert_eq!(life.state(), "Failed");
    assert_eq!(
        (&life.entity().variables["error"], life.entity().spawning().len()),
        (&json!(""), 1)
    );
    let (_, spawn) = life.entity().spawning().next().expect("it is spawned");
    assert!(!spawn.params.contains_key("note"), "{:?}", spawn.params.keys());
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_handler_ends_even_if_each_of_its_endings_breaks_an_invariant() {
    let invariant =
        "[[invariant]]\nname = \"no_error\"\nwhen = [\"Failed\"]\nassert = \"note != ''\"\n";
    let mut life = Life::of(&format!("{FULL}{invariant}"));
    take(&mut life, "Start", json!({})).expect("taken");
    let dispatched = life.entity().in_flight()[0].dispatched.clone();
    life.end(dispatched.dispatch, Outcome::Interrupted).expect("in flight");
    assert_eq!(life.state(), "Failed");
    let refused = life.log.iter().find_map(|record| match &record.event {
        Event::Transition { action, params, .. } if action == "Fail" => params.get("refused"),
        _ => None,
    });
    let refused = refused.and_then(|why| why.as_str()).expect("the record says why");
    assert!(refused.contains("no_error"), "{refused}");
    assert_eq!(divergences(&life.log), 0);
}
