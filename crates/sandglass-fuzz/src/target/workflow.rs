//! Workflow definitions, manifests of node packs, conditions and expressions.

use sandglass_source::json;
use sandglass_workflow::condition::Condition;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::expression::Expression;
use sandglass_workflow::pack::Manifest;
use sandglass_workflow::variables::initial;
use sandglass_workflow::{PROBLEMS_MAX, Problem};
use serde_json::Value;

use crate::promise;

/// Checks that each refusal has problems with locations inside the text. An accepted definition
/// must read as an equal one from its canonical text, and have an order of all its nodes.
/// Conditions and expressions must have a value in every scope.
pub(crate) fn read(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match Definition::parse(text) {
        Err(problems) => check_problems(text, &problems),
        Ok(definition) => {
            let again = Definition::parse(&definition.canonical).expect("it was accepted");
            assert_eq!(again.canonical, definition.canonical);
            assert_eq!(again.nodes, definition.nodes);
            let graph = &definition.graph;
            assert_eq!(graph.order().len(), definition.nodes.len());
            assert!(!graph.entries().is_empty());
        }
    }
    if let Err(problems) = Manifest::parse(text) {
        check_problems(text, &problems);
    }
    if let Err(what) = Expression::parse(text) {
        assert!(!what.is_empty());
    }
    let Ok(value) = json::read::<Value>(text) else { return };
    if let Err(problems) = initial(&[], Some(&value)) {
        check_problems(text, &problems);
    }
    // A list of two is an expression or a condition, followed by its scope.
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(expression), scope]) => {
            if let Ok(expression) = Expression::parse(expression) {
                let worth = expression.value(scope);
                assert_eq!(expression.holds(scope), *worth == Value::Bool(true));
            }
        }
        Some([condition, scope]) => match Condition::compile(condition) {
            Ok(condition) => drop(condition.holds(scope)),
            Err(problems) => check_problems(text, &problems),
        },
        _ => {}
    }
}

/// Checks that there is at least one problem, and that each can be shown and has a location inside
/// the text.
fn check_problems(text: &str, problems: &[Problem]) {
    assert!((1..=PROBLEMS_MAX).contains(&problems.len()), "{} problems", problems.len());
    for problem in problems {
        promise::check_text(&problem.what);
        let Some(place) = problem.place else { continue };
        let line = text.split('\n').nth(place.line - 1).expect("the line is there");
        assert!((1..=line.chars().count() + 1).contains(&place.column), "{problem}");
    }
}
