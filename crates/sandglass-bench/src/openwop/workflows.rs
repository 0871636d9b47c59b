//! The definitions of the measured workflows, as JSON texts.

use serde_json::{Value, json};

/// Three consecutive nodes that do nothing: the protocol's own `conformance-multi-node`.
pub(super) const THREE_NODES: &str = "conformance-multi-node";
/// Workflows with one event in each [`TICK_MS`]: a short one, and one for full measurements.
pub(super) const TICKING: [&str; 2] = ["bench-ticking-quick", "bench-ticking-full"];
/// A workflow that waits for an hour.
pub(super) const WAITING: &str = "bench-waiting";
/// A workflow whose [`LARGE_NODES`] nodes each output the input of the run.
pub(super) const LARGE: &str = "bench-large";

/// Time between two nodes of [`TICKING`], in milliseconds.
pub(super) const TICK_MS: u64 = 500;
/// The numbers of nodes of [`TICKING`]. The first node waits until the readers have attached.
pub(super) const TICKS: [u32; 2] = [20, 60];
/// How long the first node waits, in milliseconds.
const FIRST_TICK_MS: u64 = 4_000;
/// Nodes of [`LARGE`].
pub(super) const LARGE_NODES: u32 = 30;

/// All definitions, each with its id.
pub(super) fn all() -> Vec<(&'static str, String)> {
    let noop = |id: String| node(&id, "core.noop", json!({}), json!({}));
    let three = ["a", "b", "c"].map(|id| noop(id.to_owned()));
    let delay = |id: String, ms: u64| node(&id, "core.delay", json!({ "delayMs": ms }), json!({}));
    let ticking = |count: u32| {
        let first = delay("first".to_owned(), FIRST_TICK_MS);
        let others = (1..count).map(|nth| delay(format!("tick-{nth}"), TICK_MS));
        std::iter::once(first).chain(others).collect()
    };
    let waiting = vec![delay("wait".to_owned(), 3_600_000)];
    let given = json!({ "said": { "type": "variable", "variableName": "said" } });
    let say = |nth: u32| node(&format!("say-{nth}"), "core.identity", json!({}), given.clone());
    let large = (0..LARGE_NODES).map(say).collect();
    let said = json!([{ "name": "said", "type": "string", "defaultValue": "" }]);
    let none = json!([]);
    [
        (THREE_NODES, in_line(THREE_NODES, three.to_vec(), &none)),
        (TICKING[0], in_line(TICKING[0], ticking(TICKS[0]), &none)),
        (TICKING[1], in_line(TICKING[1], ticking(TICKS[1]), &none)),
        (WAITING, in_line(WAITING, waiting, &none)),
        (LARGE, in_line(LARGE, large, &said)),
    ]
    .into()
}

fn node(id: &str, type_id: &str, config: Value, inputs: Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 },
        "config": config, "inputs": inputs,
    })
}

/// A workflow that consists of these nodes, one after the other.
fn in_line(id: &str, nodes: Vec<Value>, variables: &Value) -> String {
    let ids: Vec<&Value> = nodes.iter().map(|node| &node["id"]).collect();
    let edges: Vec<Value> = ids
        .windows(2)
        .enumerate()
        .map(|(nth, pair)| {
            json!({ "id": format!("edge-{nth}"), "sourceNodeId": pair[0], "targetNodeId": pair[1] })
        })
        .collect();
    json!({
        "id": id, "name": id, "version": "1.0", "nodes": nodes, "edges": edges,
        "triggers": [{ "id": "manual", "type": "manual", "enabled": true }],
        "variables": variables, "metadata": {}, "settings": { "timeout": 0 },
    })
    .to_string()
}
