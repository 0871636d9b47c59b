//! Reads a definition as a whole, and checks what its parts say of each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::node::{Known, check_position, node_named};
use super::{
    CHANNELS_MAX, Channel, ComplianceClass, DEFINITION_ID_MAX_BYTES, DEFINITION_NAME_MAX_CHARS,
    Definition, Digest, EDGES_MAX, EXPRESSIONS_MAX, Edge, Graph, ID_MAX_BYTES, LISTED_MAX,
    NODES_MAX, Node, PROSE_MAX_BYTES, Port, REGEXES_MAX, Settings, VARIABLES_MAX, Variable,
};
use crate::fields::{Fields, Pattern, is_name};
use crate::problem::{Problems, quoted, under};

const DEFINITION_ID: Pattern = Pattern {
    form: "a lower-case letter, then lower-case letters, digits, `_` and `-`",
    extra: "_-",
    has_upper: false,
};

const TRIGGER_TYPES: &[&str] = &[
    "manual",
    "schedule",
    "webhook",
    "event",
    "artifact",
    "canvas",
    "envelope",
    "command",
    "chat-message",
    "channel-write",
];

/// Reads a definition from its fields, which are those of `value`, the JSON of `text`.
pub(super) fn definition(fields: &Fields<'_>, value: &Value, text: &str) -> Option<Definition> {
    for key in ["nodes", "edges", "triggers", "variables", "metadata", "settings"] {
        fields.required(key);
    }
    let id = fields.required_identifier("id", DEFINITION_ID_MAX_BYTES, &DEFINITION_ID);
    let name = fields.required_name("name", PROSE_MAX_BYTES);
    fields.characters("name", DEFINITION_NAME_MAX_CHARS);
    let version = fields.required_name("version", ID_MAX_BYTES);
    let description = fields.prose("description", PROSE_MAX_BYTES);
    check_ignored(fields);

    let variables = variables(fields);
    let listed = fields.items("nodes", NODES_MAX);
    if fields.value("nodes").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        fields.report("nodes", "there is no node; a run needs at least one");
    }
    let ids = ids(&listed, "node", fields.out);
    let known = Known { nodes: &ids, variables: &variables };
    let nodes: Vec<_> = listed
        .iter()
        .map(|(path, value)| Node::read(value, path.clone(), &known, fields.out))
        .collect();
    let edges = edges(fields, &ids);
    check_triggers(fields, &ids);
    check_groups(fields);
    let channels = channels(fields);
    let settings = fields.open_child("settings", "`settings`");
    let settings = settings.map(|settings| Settings::read(&settings));
    let metadata = fields.open_child("metadata", "`metadata`");
    let compliance = metadata.map(|metadata| ComplianceClass::read(&metadata));
    // Edges refer to nodes by their index in the list, so no node may be missing.
    let nodes: Vec<Node> = nodes.into_iter().collect::<Option<_>>()?;
    check_evaluations(&nodes, &edges, fields.out);
    let ends: Vec<_> = edges.iter().map(|edge| (edge.source, edge.target)).collect();
    Some(Definition {
        id: id?.to_owned(),
        name: name?.to_owned(),
        version: version?.to_owned(),
        description,
        graph: Graph::new(nodes.len(), &ends),
        nodes,
        edges,
        variables,
        channels,
        settings: settings?,
        metadata: fields.object("metadata")?,
        compliance: compliance?,
        configurable_schema: fields.value("configurableSchema").cloned(),
        digest: Digest::of(text.as_bytes()),
        canonical: value.to_string(),
    })
}

/// Checks what has no effect on a run.
fn check_ignored(fields: &Fields<'_>) {
    for key in ["type", "tenantId", "scopeId", "slug", "createdAt", "updatedAt"] {
        fields.text(key);
    }
    fields.flag("isActive");
    fields.one_of("status", &["active", "inactive", "draft", "archived"]);
    fields.patterned("slug", "a lower-case letter or digit, then these, `_` and `-`", |slug| {
        let begins = !slug.starts_with(['_', '-']) && !slug.is_empty();
        begins && slug.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'))
    });
    fields.object("configurableSchema");
    fields.child("defaults", "`defaults`", |defaults| {
        if let Some(refs) = defaults.open_child("promptRefs", "`promptRefs`") {
            refs.only(&["system", "user", "few-shot", "schema-hint"]);
        }
    });
    for (path, value) in fields.items("acceptsInheritedArtifacts", LISTED_MAX) {
        Fields::of(value, path, "the artifact", fields.out);
    }
}

fn variables(fields: &Fields<'_>) -> Vec<Variable> {
    let mut names = BTreeSet::new();
    let mut variables = Vec::new();
    for (path, value) in fields.items("variables", VARIABLES_MAX) {
        let Some(variable) = Variable::read(value, path.clone(), fields.out) else { continue };
        if names.insert(variable.name.clone()) {
            variables.push(variable);
        } else {
            let what = format!("another variable is named {}; rename one", quoted(&variable.name));
            fields.out.add(under(&path, "name"), what);
        }
    }
    variables
}

/// The ids of what is listed, with its indices. Duplicate ids are reported.
fn ids<'v>(listed: &[(String, &'v Value)], what: &str, out: &Problems) -> BTreeMap<&'v str, usize> {
    let mut ids = BTreeMap::new();
    for (index, (path, value)) in listed.iter().enumerate() {
        let Some(id) = value.get("id").and_then(Value::as_str) else { continue };
        if let Some(other) = ids.insert(id, index) {
            let id = quoted(id);
            let what = format!("the {what} {other} has the id {id}, too; rename one of them");
            out.add(under(path, "id"), what);
        }
    }
    ids
}

fn edges(fields: &Fields<'_>, nodes: &BTreeMap<&str, usize>) -> Vec<Edge> {
    let listed = fields.items("edges", EDGES_MAX);
    ids(&listed, "edge", fields.out);
    let mut ends = BTreeMap::new();
    let mut edges = Vec::new();
    for (index, (path, value)) in listed.into_iter().enumerate() {
        let Some(edge) = Edge::read(value, path.clone(), nodes, fields.out) else { continue };
        // Edges with other conditions or ports are no duplicates.
        let same = (
            edge.source,
            edge.target,
            edge.source_output.clone(),
            edge.target_input.clone(),
            value.get("condition").map(Value::to_string),
        );
        if let Some(other) = ends.insert(same, index) {
            let what = format!("the edge {other} leads from and to the same; remove one of them");
            fields.out.add(path, what);
        }
        edges.push(edge);
    }
    edges
}

fn check_triggers(fields: &Fields<'_>, nodes: &BTreeMap<&str, usize>) {
    let listed = fields.items("triggers", LISTED_MAX);
    ids(&listed, "trigger", fields.out);
    for (path, value) in listed {
        Fields::closed(value, path, "the trigger", fields.out, |trigger| {
            trigger.required_name("id", ID_MAX_BYTES);
            trigger.required("type");
            trigger.one_of("type", TRIGGER_TYPES);
            trigger.text("name");
            trigger.prose("description", PROSE_MAX_BYTES);
            trigger.text("eventType");
            trigger.object("config");
            trigger.flag("enabled");
            if trigger.value("nodeId").is_some() {
                node_named(trigger, "nodeId", nodes);
            }
        });
    }
}

/// Checks the groups, which are for editors.
fn check_groups(fields: &Fields<'_>) {
    for (path, value) in fields.items("groups", LISTED_MAX) {
        Fields::closed(value, path, "the group", fields.out, |group| {
            group.required_name("id", ID_MAX_BYTES);
            group.required_name("name", PROSE_MAX_BYTES);
            group.text("color");
            group.flag("collapsed");
            group.required("nodeIds");
            group.texts("nodeIds", NODES_MAX);
            check_position(group);
            group.required("size");
            if let Some(size) = group.open_child("size", "the size") {
                size.required_number("width");
                size.required_number("height");
            }
        });
    }
}

fn channels(fields: &Fields<'_>) -> BTreeMap<String, Channel> {
    let mut channels = BTreeMap::new();
    for (name, path, value) in fields.named("channels", CHANNELS_MAX) {
        if !is_name(name, ID_MAX_BYTES) {
            let what = format!("a channel's name has 1 to {ID_MAX_BYTES} bytes, none a control");
            fields.out.add(path.as_str(), what);
        }
        if let Some(channel) = Channel::read(value, path, fields.out) {
            channels.insert(name.to_owned(), channel);
        }
    }
    channels
}

/// Checks how many conditions and ports may have to be evaluated at once.
fn check_evaluations(nodes: &[Node], edges: &[Edge], out: &Problems) {
    let ports = nodes.iter().flat_map(|node| node.inputs.values());
    let ports = ports.filter(|port| matches!(port, Port::Expression(_))).count();
    let conditions = edges.iter().filter_map(|edge| edge.condition.as_ref());
    let regexes = conditions.clone().filter(|condition| condition.is_regex()).count();
    let expressions = conditions.filter(|condition| condition.is_expression()).count() + ports;
    for (found, max, what) in
        [(expressions, EXPRESSIONS_MAX, "expressions"), (regexes, REGEXES_MAX, "regex conditions")]
    {
        if found > max {
            out.add("", format!("it has {found} {what}, and {max} are allowed; use fewer"));
        }
    }
}
