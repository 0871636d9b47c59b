//! Reads a definition as a whole: what its parts say of each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::node::{Known, position};
use super::{
    CHANNELS_MAX, Channel, ComplianceClass, DEFINITION_ID_MAX_BYTES, DEFINITION_MAX_BYTES,
    DEFINITION_NAME_MAX_CHARS, Definition, Digest, EDGES_MAX, EXPRESSIONS_MAX, Edge, Graph,
    ID_MAX_BYTES, LISTED_MAX, NODES_MAX, Node, PROSE_MAX_BYTES, Port, REGEXES_MAX, Settings,
    VARIABLES_MAX, Variable,
};
use crate::document::{placed, read};
use crate::fields::{Fields, Upper, is_identifier};
use crate::problem::{Problem, Problems, quoted, under};

const KEYS: &[&str] = &[
    "id",
    "name",
    "description",
    "version",
    "type",
    "isActive",
    "status",
    "tenantId",
    "scopeId",
    "slug",
    "nodes",
    "edges",
    "triggers",
    "variables",
    "groups",
    "channels",
    "configurableSchema",
    "defaults",
    "metadata",
    "settings",
    "acceptsInheritedArtifacts",
    "createdAt",
    "updatedAt",
];

pub(super) fn definition(text: &str) -> Result<Definition, Vec<Problem>> {
    let value = read(text, DEFINITION_MAX_BYTES)?;
    let mut out = Problems::default();
    let definition = whole(&value, text, &mut out);
    match definition {
        Some(definition) if out.is_empty() => Ok(definition),
        _ => Err(placed(out.into_vec(), text)),
    }
}

fn whole(value: &Value, text: &str, out: &mut Problems) -> Option<Definition> {
    let fields = Fields::of(value, "", "the definition", out)?;
    fields.only(KEYS, out);
    for key in ["nodes", "edges", "triggers", "variables", "metadata", "settings"] {
        fields.required(key, out);
    }
    let id = fields.required_name("id", DEFINITION_ID_MAX_BYTES, out);
    fields.patterned(
        "id",
        "a lower-case letter, then lower-case letters, digits, `_` and `-`",
        |id| is_identifier(id, &['_', '-'], Upper::Refused),
        out,
    );
    let name = fields.required_name("name", PROSE_MAX_BYTES, out);
    fields.characters("name", DEFINITION_NAME_MAX_CHARS, out);
    let version = fields.required_name("version", ID_MAX_BYTES, out);
    let description = fields.prose("description", PROSE_MAX_BYTES, out);
    for_people(&fields, out);

    let variables = variables(&fields, out);
    let listed = fields.items("nodes", NODES_MAX, out);
    if fields.value("nodes").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        out.add("/nodes", "there is no node; a run needs at least one");
    }
    let ids = ids(&listed, "node", out);
    let known = Known { nodes: &ids, variables: &variables };
    let nodes: Vec<_> = {
        let read = listed.iter().map(|(path, value)| Node::read(value, path.clone(), &known, out));
        read.collect()
    };
    let edges = edges(&fields, &ids, out);
    triggers(&fields, &ids, out);
    groups(&fields, out);
    let channels = channels(&fields, out);
    let settings = fields.fields("settings", "`settings`", out);
    let settings = settings.map(|settings| Settings::read(&settings, out));
    let metadata = fields.fields("metadata", "`metadata`", out);
    let compliance = metadata.map(|metadata| ComplianceClass::read(&metadata, out));
    // Indices of nodes are those of the list, so one that isn't read ends it.
    let nodes: Vec<Node> = nodes.into_iter().collect::<Option<_>>()?;
    evaluations(&nodes, &edges, out);
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
        metadata: fields.object("metadata", out)?,
        compliance: compliance?,
        configurable_schema: fields.value("configurableSchema").cloned(),
        digest: Digest::of(text.as_bytes()),
        canonical: value.to_string(),
    })
}

/// What has no effect on a run.
fn for_people(fields: &Fields<'_>, out: &mut Problems) {
    for key in ["type", "tenantId", "scopeId", "slug", "createdAt", "updatedAt"] {
        fields.text(key, out);
    }
    fields.flag("isActive", out);
    fields.one_of("status", &["active", "inactive", "draft", "archived"], out);
    fields.patterned(
        "slug",
        "a lower-case letter or digit, then these, `_` and `-`",
        |slug| {
            let begins = !slug.starts_with(['_', '-']) && !slug.is_empty();
            begins && slug.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'))
        },
        out,
    );
    fields.object("configurableSchema", out);
    if let Some(defaults) = fields.fields("defaults", "`defaults`", out) {
        defaults.only(&["promptRefs"], out);
        if let Some(refs) = defaults.fields("promptRefs", "`promptRefs`", out) {
            refs.only(&["system", "user", "few-shot", "schema-hint"], out);
        }
    }
    for (path, value) in fields.items("acceptsInheritedArtifacts", LISTED_MAX, out) {
        Fields::of(value, path, "the artifact", out);
    }
}

fn variables(fields: &Fields<'_>, out: &mut Problems) -> Vec<Variable> {
    let listed = fields.items("variables", VARIABLES_MAX, out);
    let mut names = BTreeSet::new();
    let mut variables = Vec::new();
    for (path, value) in listed {
        let Some(variable) = Variable::read(value, path.clone(), out) else { continue };
        if names.insert(variable.name.clone()) {
            variables.push(variable);
        } else {
            let name = quoted(&variable.name);
            out.add(under(&path, "name"), format!("another variable is named {name}; rename one"));
        }
    }
    variables
}

/// The ids of what is listed and its indices; ids that stand twice are noted.
fn ids<'v>(
    listed: &[(String, &'v Value)],
    what: &str,
    out: &mut Problems,
) -> BTreeMap<&'v str, usize> {
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

fn edges(fields: &Fields<'_>, nodes: &BTreeMap<&str, usize>, out: &mut Problems) -> Vec<Edge> {
    let listed = fields.items("edges", EDGES_MAX, out);
    ids(&listed, "edge", out);
    let mut ends = BTreeMap::new();
    let mut edges = Vec::new();
    for (index, (path, value)) in listed.iter().enumerate() {
        let Some(edge) = Edge::read(value, path.clone(), nodes, out) else { continue };
        // With another condition or another port it says something else.
        let same = (
            edge.source,
            edge.target,
            edge.source_output.clone(),
            edge.target_input.clone(),
            value.get("condition").map(Value::to_string),
        );
        if let Some(other) = ends.insert(same, index) {
            let what = format!("the edge {other} leads from and to the same; drop one of them");
            out.add(path.as_str(), what);
        }
        edges.push(edge);
    }
    edges
}

fn triggers(fields: &Fields<'_>, nodes: &BTreeMap<&str, usize>, out: &mut Problems) {
    let types = [
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
    let keys = ["id", "type", "name", "description", "config", "enabled", "nodeId", "eventType"];
    let listed = fields.items("triggers", LISTED_MAX, out);
    ids(&listed, "trigger", out);
    for (path, value) in listed {
        let Some(trigger) = Fields::of(value, path, "the trigger", out) else { continue };
        trigger.only(&keys, out);
        trigger.required_name("id", ID_MAX_BYTES, out);
        if trigger.required("type", out).is_some() {
            trigger.one_of("type", &types, out);
        }
        trigger.text("name", out);
        trigger.prose("description", PROSE_MAX_BYTES, out);
        trigger.text("eventType", out);
        trigger.object("config", out);
        trigger.flag("enabled", out);
        if trigger.value("nodeId").is_some() {
            super::node::node_named(&trigger, "nodeId", nodes, out);
        }
    }
}

/// Groups are for editors.
fn groups(fields: &Fields<'_>, out: &mut Problems) {
    let keys = ["id", "name", "color", "collapsed", "nodeIds", "position", "size"];
    for (path, value) in fields.items("groups", LISTED_MAX, out) {
        let Some(group) = Fields::of(value, path, "the group", out) else { continue };
        group.only(&keys, out);
        group.required_name("id", ID_MAX_BYTES, out);
        group.required_name("name", PROSE_MAX_BYTES, out);
        group.text("color", out);
        group.flag("collapsed", out);
        group.required("nodeIds", out);
        group.texts("nodeIds", NODES_MAX, out);
        position(&group, out);
        group.required("size", out);
        if let Some(size) = group.fields("size", "the size", out) {
            for side in ["width", "height"] {
                size.required(side, out);
                size.number(side, out);
            }
        }
    }
}

fn channels(fields: &Fields<'_>, out: &mut Problems) -> BTreeMap<String, Channel> {
    let mut channels = BTreeMap::new();
    let Some(declared) = fields.fields("channels", "`channels`", out) else { return channels };
    if declared.entries().count() > CHANNELS_MAX {
        out.add("/channels", format!("there are more than {CHANNELS_MAX} channels; use fewer"));
        return channels;
    }
    for (name, value) in declared.entries() {
        let path = declared.under(name);
        if name.is_empty() || name.len() > ID_MAX_BYTES || name.chars().any(char::is_control) {
            let what = format!("a channel's name has 1 to {ID_MAX_BYTES} bytes, none a control");
            out.add(path.as_str(), what);
        }
        if let Some(channel) = Channel::read(value, path, out) {
            channels.insert(name.to_owned(), channel);
        }
    }
    channels
}

/// Bounds what may have to be evaluated at once.
fn evaluations(nodes: &[Node], edges: &[Edge], out: &mut Problems) {
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
