//! What a run does next: a pure function of its definition and its state.
//!
//! Nodes are executed one at a time, in the order of the graph, so that equal events lead to an equal next
//! step in a run, in its replay, and after a restart of its host.

use serde_json::{Map, Value, json};

use crate::decision::Decision;
use crate::definition::{Definition, TriggerRule};
use crate::error::{ErrorCode, RunError};
use crate::event::{Payload, RunEvent};
use crate::node::{is_dispatch, is_orchestrator};
use crate::state::{NodeStatus, RunState};

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Execute this node, by its index in the definition.
    Run(usize),
    /// Wait for an answer.
    Wait,
    /// Complete the run with these outputs.
    Complete(Value),
    /// Fail the run.
    Fail(RunError),
}

/// What comes next, and the decisions that lead to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The events of these decisions, in order.
    pub events: Vec<RunEvent>,
    /// The next step.
    pub step: Step,
}

/// What `state` leads to. The events are folded into it.
pub fn plan(definition: &Definition, state: &mut RunState) -> Plan {
    let mut events = Vec::new();
    let mut step = step(definition, state, &mut events);
    if let Step::Complete(_) = step
        && let Some(error) =
            unhandled_failure(definition, state, |taker| !matches!(taker, NodeStatus::Skipped))
    {
        step = Step::Fail(error);
    }
    Plan { events, step }
}

fn step(definition: &Definition, state: &mut RunState, events: &mut Vec<RunEvent>) -> Step {
    if state.waiting.is_some() {
        return Step::Wait;
    }
    // A fork from the middle of a node executes the node; if it was suspended, it asks again.
    if let Some(open) = state.current() {
        return Step::Run(open);
    }
    if let Some(error) = unhandled_failure(definition, state, |_| true) {
        return Step::Fail(error);
    }
    if has_terminated(definition, state) {
        return Step::Complete(outputs(definition, state));
    }
    for index in definition.graph.order().iter().copied() {
        if !matches!(state.nodes[index].status, NodeStatus::Pending) {
            continue;
        }
        match verdict(definition, state, index) {
            Verdict::NotYet => {}
            Verdict::Run => return Step::Run(index),
            Verdict::Skip(reason) => {
                let node = &definition.nodes[index].id;
                let (node_id, reason) = (node.clone(), reason.to_owned());
                let event = RunEvent::of_node(node, Payload::NodeSkipped { node_id, reason });
                state.apply(definition, &event);
                events.push(event);
            }
        }
    }
    // A loop is taken only if nothing else is left to do.
    for index in 0..definition.edges.len() {
        if !definition.graph.is_back(index) || !leads_on(definition, state, index) {
            continue;
        }
        let to = definition.edges[index].target;
        let target = &definition.nodes[to];
        let rounds = state.nodes[to].executions.saturating_sub(1);
        let limit = definition.settings.max_loopback_iterations;
        if target.disabled {
            continue;
        }
        if !is_orchestrator(target) && rounds >= limit {
            let iterations = rounds.saturating_add(1);
            let node_id = target.id.clone();
            events.push(RunEvent::of_node(
                &target.id,
                Payload::LoopbackLimit { node_id, iterations, limit },
            ));
            let message = format!("the loop back to `{}` may be taken {limit} times", target.id);
            let error = RunError::new(ErrorCode::LoopbackLimitExceeded, message)
                .detail("nodeId", &*target.id)
                .detail("limit", limit)
                .detail("observed", iterations);
            return Step::Fail(error);
        }
        return Step::Run(to);
    }
    Step::Complete(outputs(definition, state))
}

/// The error of a run with a node whose failure no other node handles, of those that `can_handle` it.
fn unhandled_failure(
    definition: &Definition,
    state: &RunState,
    can_handle: impl Fn(&NodeStatus) -> bool,
) -> Option<RunError> {
    state.nodes.iter().enumerate().find_map(|(index, node)| {
        let NodeStatus::Failed(error) = &node.status else { return None };
        if takers(definition, index).any(|taker| can_handle(&state.nodes[taker].status)) {
            return None;
        }
        let mut error = error.clone();
        let details = error.details.get_or_insert_default();
        details.entry("nodeId").or_insert_with(|| definition.nodes[index].id.as_str().into());
        Some(error)
    })
}

/// The nodes that may handle the failure of the one at `index`.
fn takers(definition: &Definition, index: usize) -> impl Iterator<Item = usize> {
    let outgoing = definition.graph.outgoing(index).iter().copied();
    outgoing.filter(|edge| !definition.graph.is_back(*edge)).filter_map(|edge| {
        let edge = &definition.edges[edge];
        let takes = matches!(edge.trigger_rule, TriggerRule::AllComplete | TriggerRule::AnyFailed);
        (takes && !definition.nodes[edge.target].disabled).then_some(edge.target)
    })
}

/// Whether the orchestrator has ended the run.
fn has_terminated(definition: &Definition, state: &RunState) -> bool {
    matches!(state.decision, Some(Decision::Terminate { .. }))
        && definition.nodes.iter().zip(&state.nodes).any(|(node, state)| {
            is_orchestrator(node) && matches!(state.status, NodeStatus::Completed)
        })
}

enum Verdict {
    NotYet,
    Run,
    Skip(&'static str),
}

/// Whether the node at `index` is executed, depending on the trigger rules of its edges, which are those of
/// Airflow. The rules of all edges must hold: `any_success` and `any_failed` over the edges that have
/// them, the others for each edge.
fn verdict(definition: &Definition, state: &RunState, index: usize) -> Verdict {
    let mut any_success = None::<bool>;
    let mut any_failed = None::<bool>;
    let mut all = true;
    for at in definition.graph.incoming(index).iter().copied() {
        if definition.graph.is_back(at) {
            continue;
        }
        let edge = &definition.edges[at];
        let source = &state.nodes[edge.source].status;
        if !source.is_resolved() {
            return Verdict::NotYet;
        }
        match edge.trigger_rule {
            TriggerRule::AllSuccess => all &= leads_on(definition, state, at),
            TriggerRule::AllComplete => {
                let has_none = matches!(source, NodeStatus::Failed(_) | NodeStatus::Skipped);
                all &= has_none || leads_on(definition, state, at);
            }
            TriggerRule::NoneFailed => {
                all &= matches!(source, NodeStatus::Skipped) || leads_on(definition, state, at);
            }
            TriggerRule::AnySuccess => {
                *any_success.get_or_insert(false) |= leads_on(definition, state, at);
            }
            TriggerRule::AnyFailed => {
                *any_failed.get_or_insert(false) |= matches!(source, NodeStatus::Failed(_));
            }
        }
    }
    if definition.nodes[index].disabled {
        Verdict::Skip("it is disabled")
    } else if all && any_success.unwrap_or(true) && any_failed.unwrap_or(true) {
        Verdict::Run
    } else {
        Verdict::Skip("its edges don't lead to it")
    }
}

/// Whether the source of the edge at `index` is complete and the condition of the edge holds.
fn leads_on(definition: &Definition, state: &RunState, index: usize) -> bool {
    let edge = &definition.edges[index];
    let source = &state.nodes[edge.source];
    if !matches!(source.status, NodeStatus::Completed) {
        return false;
    }
    let from = &definition.nodes[edge.source];
    let target = &definition.nodes[edge.target];
    if is_dispatch(from) && !definition.graph.is_back(index) && !is_chosen(state, &target.id) {
        return false;
    }
    let Some(condition) = &edge.condition else { return true };
    condition.holds(&scope(state, source.status.as_str(), &source.outputs))
}

/// Whether the orchestrator has chosen this node as a worker.
fn is_chosen(state: &RunState, node: &str) -> bool {
    let mut workers = state.decision.iter().flat_map(Decision::workers);
    workers.any(|worker| worker == node)
}

/// What conditions and expressions see.
pub fn scope(state: &RunState, status: &str, outputs: &Value) -> Value {
    json!({
        "status": status,
        "output": outputs,
        "outputs": outputs,
        "variables": state.variables,
        "inputs": state.inputs,
    })
}

/// The outputs of the run: those of the only node that no node follows, or those of all such nodes by
/// their ids.
fn outputs(definition: &Definition, state: &RunState) -> Value {
    let is_completed = |index: usize| matches!(state.nodes[index].status, NodeStatus::Completed);
    let is_last = |index: &usize| {
        definition.graph.outgoing(*index).iter().all(|edge| {
            definition.graph.is_back(*edge) || !is_completed(definition.edges[*edge].target)
        })
    };
    let completed = (0..definition.nodes.len()).filter(|index| is_completed(*index));
    let last: Vec<usize> = completed.filter(is_last).collect();
    if let [only] = last.as_slice() {
        return state.nodes[*only].outputs.clone();
    }
    let of =
        |index: usize| (definition.nodes[index].id.clone(), state.nodes[index].outputs.clone());
    Value::Object(last.into_iter().map(of).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;

    /// A definition of noop nodes and orchestrators, by the edges between them.
    fn definition(
        nodes: &[(&str, &str)],
        edges: &[(&str, &str, Value)],
        settings: Value,
    ) -> Definition {
        let nodes: Vec<Value> = nodes
            .iter()
            .map(|(id, type_id)| {
                json!({
                    "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 },
                    "config": {}, "inputs": {}, "disabled": id.starts_with("off"),
                })
            })
            .collect();
        let edges: Vec<Value> = edges
            .iter()
            .enumerate()
            .map(|(number, (source, target, more))| {
                let mut edge = json!({
                    "id": format!("e{number}"), "sourceNodeId": source, "targetNodeId": target,
                });
                let fields = edge.as_object_mut().expect("an object");
                fields.extend(more.as_object().cloned().unwrap_or_default());
                edge
            })
            .collect();
        let text = json!({
            "id": "test", "name": "test", "version": "1", "nodes": nodes, "edges": edges,
            "triggers": [], "variables": [], "metadata": {}, "settings": settings,
        });
        Definition::parse(&text.to_string()).expect("sound")
    }

    /// Runs the plan with nodes that return the outputs of `answer`, or fail if it returns `None`; returns
    /// the events and the end.
    fn run(
        definition: &Definition,
        state: &mut RunState,
        mut answer: impl FnMut(&str, u64) -> Option<Value>,
    ) -> (Vec<RunEvent>, Step) {
        let mut events = Vec::new();
        for _ in 0..200 {
            let planned = plan(definition, state);
            events.extend(planned.events);
            let Step::Run(index) = planned.step else { return (events, planned.step) };
            let id = definition.nodes[index].id.as_str();
            let mut happened = vec![RunEvent::started(id, "core.noop")];
            let nth = state.nodes[index].executions + 1;
            match answer(id, nth) {
                Some(outputs) => {
                    if is_orchestrator(&definition.nodes[index]) {
                        let decision = Decision::parse(&outputs).expect("a decision");
                        let agent_id = "all".to_owned();
                        let decided =
                            Payload::OrchestratorDecided { agent_id, decision, iteration: nth };
                        happened.push(RunEvent::of_node(id, decided));
                    }
                    happened.push(RunEvent::completed(id, outputs));
                }
                None => happened.push(RunEvent::failed(id, RunError::new("bad", "it failed"))),
            }
            happened.iter().for_each(|event| state.apply(definition, event));
            events.extend(happened);
        }
        panic!("the run does not end");
    }

    /// The nodes that were begun (`a`) and skipped (`-a`), in order.
    fn visited(events: &[RunEvent]) -> Vec<String> {
        let of = |event: &RunEvent| match &event.payload {
            Payload::NodeStarted { node_id, .. } => Some(node_id.clone()),
            Payload::NodeSkipped { node_id, .. } => Some(format!("-{node_id}")),
            _ => None,
        };
        events.iter().filter_map(of).collect()
    }

    fn noops<'a>(ids: &[&'a str]) -> Vec<(&'a str, &'static str)> {
        ids.iter().map(|id| (*id, "core.noop")).collect()
    }

    fn rule(rule: &str) -> Value {
        json!({ "triggerRule": rule })
    }

    #[test]
    fn a_node_runs_when_the_rules_of_its_edges_hold() {
        let none = json!({});
        for (rules, failing, expected) in [
            // One of both before it fails.
            (["all_success", "all_success"], "b", "a b c -d"),
            (["any_success", "any_success"], "b", "a b c d"),
            (["all_complete", "all_complete"], "b", "a b c d"),
            (["none_failed", "none_failed"], "b", "a b c -d"),
            (["any_failed", "any_failed"], "b", "a b c d"),
            // None fails.
            (["all_success", "all_success"], "", "a b c d"),
            (["any_failed", "any_failed"], "", "a b c -d"),
            (["none_failed", "any_success"], "", "a b c d"),
            // The rules of both must hold.
            (["any_failed", "all_success"], "b", "a b c d"),
            (["any_failed", "all_success"], "c", "a b c -d"),
        ] {
            let handled = rule("all_complete");
            let definition = definition(
                &noops(&["a", "b", "c", "d", "x"]),
                &[
                    ("a", "b", none.clone()),
                    ("a", "c", none.clone()),
                    ("b", "d", rule(rules[0])),
                    ("c", "d", rule(rules[1])),
                    // So that no failure ends the run.
                    ("b", "x", handled.clone()),
                    ("c", "x", handled),
                ],
                json!({}),
            );
            let mut state = RunState::new(&definition);
            let answer = |id: &str, _| (id != failing).then(|| json!({}));
            let (events, step) = run(&definition, &mut state, answer);
            let visited: Vec<String> =
                visited(&events).into_iter().filter(|node| node != "x").collect();
            assert_eq!(visited.join(" "), expected, "{rules:?}, {failing} fails");
            assert!(matches!(step, Step::Complete(_)), "{step:?}");
        }
    }

    #[test]
    fn nodes_behind_conditions_that_do_not_hold_are_skipped() {
        let is = |right: &str| json!({ "condition": { "type": "equals", "left": "output.go", "right": right } });
        let definition = definition(
            &noops(&["a", "left", "right", "behind", "off"]),
            &[
                ("a", "left", is("left")),
                ("a", "right", is("right")),
                ("right", "behind", json!({})),
                ("a", "off", json!({})),
            ],
            json!({}),
        );
        let mut state = RunState::new(&definition);
        let (events, step) = run(&definition, &mut state, |_, _| Some(json!({ "go": "left" })));
        assert_eq!(visited(&events).join(" "), "a left -right -off -behind");
        assert_eq!(step, Step::Complete(json!({ "go": "left" })));
    }

    #[test]
    fn a_failure_that_no_edge_handles_ends_the_run() {
        let definition = definition(&noops(&["a", "b"]), &[("a", "b", json!({}))], json!({}));
        let (events, step) = run(&definition, &mut RunState::new(&definition), |_, _| None);
        assert_eq!(visited(&events), ["a"]);
        let Step::Fail(error) = step else { panic!("{step:?}") };
        assert_eq!(
            json!(error),
            json!({ "code": "bad", "message": "it failed", "details": { "nodeId": "a" } })
        );
    }

    #[test]
    fn a_loop_without_an_orchestrator_is_limited() {
        let again =
            json!({ "condition": { "type": "equals", "left": "output.again", "right": true } });
        let edges = [("a", "b", json!({})), ("b", "a", again)];
        let nodes = noops(&["a", "b"]);
        let definition = definition(&nodes, &edges, json!({ "maxLoopbackIterations": 2 }));
        let twice = |_: &str, nth: u64| Some(json!({ "again": nth < 3 }));
        let (events, step) = run(&definition, &mut RunState::new(&definition), twice);
        assert_eq!(visited(&events).join(" "), "a b a b a b");
        assert!(matches!(step, Step::Complete(_)), "{step:?}");
        let always = |_: &str, _| Some(json!({ "again": true }));
        let (events, step) = run(&definition, &mut RunState::new(&definition), always);
        assert_eq!(visited(&events).join(" "), "a b a b a b");
        assert_eq!(events.last().map(RunEvent::kind), Some(Kind::LoopbackLimit));
        let Step::Fail(error) = step else { panic!("{step:?}") };
        assert_eq!(error.code, ErrorCode::LoopbackLimitExceeded);
    }

    fn orchestrated() -> Definition {
        let none = json!({});
        definition(
            &[
                ("lead", "core.orchestrator.supervisor"),
                ("hand", "core.dispatch"),
                ("one", "core.noop"),
                ("two", "core.noop"),
            ],
            &[
                ("lead", "hand", none.clone()),
                ("hand", "one", none.clone()),
                ("hand", "two", none.clone()),
                ("hand", "lead", none),
            ],
            json!({ "maxLoopbackIterations": 1 }),
        )
    }

    fn decides(id: &str, nth: u64) -> Option<Value> {
        let next = |workers: &[&str]| json!({ "kind": "next-worker", "nextWorkerIds": workers });
        Some(match (id, nth) {
            ("lead", 1) => next(&["one"]),
            ("lead", 2) => next(&["one", "two"]),
            ("lead", 3) => next(&["nobody"]),
            ("lead", _) => json!({ "kind": "terminate" }),
            _ => json!({}),
        })
    }

    #[test]
    fn an_orchestrator_chooses_workers_turn_by_turn_until_it_ends_the_run() {
        let definition = orchestrated();
        let (events, step) = run(&definition, &mut RunState::new(&definition), decides);
        let expected = "lead hand one -two lead hand one two lead hand -one -two lead";
        assert_eq!(visited(&events).join(" "), expected);
        assert!(matches!(step, Step::Complete(_)), "{step:?}");
    }

    #[test]
    fn a_fold_of_any_beginning_of_the_events_leads_to_the_same_rest() {
        let definition = orchestrated();
        let (events, _) = run(&definition, &mut RunState::new(&definition), decides);
        for cut in 0..events.len() {
            let mut state = RunState::new(&definition);
            events[..cut].iter().for_each(|event| state.apply(&definition, event));
            // A node that had begun is begun once more; everything else follows as it did.
            let open = state.current();
            if let Some(index) = open {
                state.nodes[index].executions -= 1;
            }
            let (rest, _) = run(&definition, &mut state, decides);
            let mut all = visited(&events[..cut]);
            if open.is_some() {
                all.pop();
            }
            all.extend(visited(&rest));
            assert_eq!(all, visited(&events), "cut at {cut}");
        }
    }
}
