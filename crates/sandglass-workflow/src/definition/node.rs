//! Nodes, and where the values of their ports come from.

use std::collections::BTreeMap;

use sandglass_model::Object;
use serde_json::Value;

use super::{ID_MAX_BYTES, OnCrash, PORTS_MAX, PROSE_MAX_BYTES, Variable};
use crate::expression::Expression;
use crate::fields::{Fields, Upper, is_identifier};
use crate::problem::{Problems, quoted, under};

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// Its id, which no other node of the definition has.
    pub id: String,
    /// What it runs.
    pub type_id: String,
    /// What people call it.
    pub name: String,
    /// Constants that it runs with.
    pub config: Object,
    /// Where the values of its ports come from, by the port.
    pub inputs: BTreeMap<String, Port>,
    /// What else is set for it, as it was written.
    pub settings: Object,
    /// What becomes of it where a crash interrupts it, if it says so itself.
    pub on_crash: Option<OnCrash>,
    /// The credential that it names.
    pub credentials_ref: Option<String>,
    /// Whether it is left out of runs.
    pub disabled: bool,
    /// The outputs whose values are masked (true), and those that aren't although their pack
    /// says so (false).
    pub output_sensitivity: BTreeMap<String, bool>,
}

/// Where the value of a port comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Port {
    /// It is this one.
    Static(Value),
    /// It is what a variable holds.
    Variable {
        /// The variable. Unless the port is optional it is declared.
        name: String,
        /// Whether it may be absent.
        optional: bool,
    },
    /// It is what a node put out.
    Connection {
        /// The index of the node.
        node: usize,
        /// Which of its outputs.
        output: String,
        /// Whether it may be absent.
        optional: bool,
    },
    /// It is what an expression is worth.
    Expression(Expression),
}

/// What a node's ports may refer to.
pub(super) struct Known<'a> {
    pub(super) nodes: &'a BTreeMap<&'a str, usize>,
    pub(super) variables: &'a [Variable],
}

impl Node {
    pub(super) fn read(
        value: &Value,
        path: String,
        known: &Known<'_>,
        out: &mut Problems,
    ) -> Option<Self> {
        let fields = Fields::of(value, path, "the node", out)?;
        fields.only(KEYS, out);
        let id = fields.required_name("id", ID_MAX_BYTES, out);
        let type_id = fields.required_name("typeId", ID_MAX_BYTES, out);
        fields.patterned(
            "typeId",
            "a lower-case letter, then letters, digits, `.`, `_` and `-`",
            is_type_id,
            out,
        );
        let name = fields.required_name("name", PROSE_MAX_BYTES, out);
        position(&fields, out);
        fields.required("config", out);
        fields.required("inputs", out);
        other_fields(&fields, out);
        let config = fields.object("config", out).unwrap_or_default();
        let inputs = ports(&fields, known, out);
        Some(Self {
            config,
            inputs,
            on_crash: fields
                .fields("settings", "`settings`", out)
                .and_then(|settings| OnCrash::read(&settings, out)),
            settings: fields.object("settings", out).unwrap_or_default(),
            credentials_ref: fields.text("credentialsRef", out).map(str::to_owned),
            disabled: fields.flag("disabled", out),
            output_sensitivity: fields.flags("outputSensitivity", out),
            id: id?.to_owned(),
            type_id: type_id?.to_owned(),
            name: name?.to_owned(),
        })
    }
}

const KEYS: &[&str] = &[
    "id",
    "typeId",
    "name",
    "position",
    "config",
    "inputs",
    "credentialsRef",
    "settings",
    "outputRole",
    "disabled",
    "notes",
    "groupId",
    "agent",
    "envelopeContract",
    "artifactType",
    "cardType",
    "outputSensitivity",
];

/// Whether it is one by the protocol's pattern.
pub(crate) fn is_type_id(text: &str) -> bool {
    is_identifier(text, &['.', '_', '-'], Upper::Allowed)
}

/// Where it stands in an editor.
pub(super) fn position(fields: &Fields<'_>, out: &mut Problems) {
    if fields.required("position", out).is_none() {
        return;
    }
    if let Some(position) = fields.fields("position", "the position", out) {
        for axis in ["x", "y"] {
            position.required(axis, out);
            position.number(axis, out);
        }
    }
}

/// What has no effect on a run.
fn other_fields(fields: &Fields<'_>, out: &mut Problems) {
    for key in ["groupId", "artifactType", "cardType"] {
        fields.text(key, out);
    }
    fields.prose("notes", PROSE_MAX_BYTES, out);
    fields.one_of("outputRole", &["primary", "secondary"], out);
    fields.object("agent", out);
    fields.object("envelopeContract", out);
}

fn ports(node: &Fields<'_>, known: &Known<'_>, out: &mut Problems) -> BTreeMap<String, Port> {
    let mut ports = BTreeMap::new();
    let Some(inputs) = node.fields("inputs", "`inputs`", out) else { return ports };
    if inputs.entries().count() > PORTS_MAX {
        out.add(inputs.path, format!("a node has at most {PORTS_MAX} ports; use fewer"));
        return ports;
    }
    for (name, value) in inputs.entries() {
        let path = under(&inputs.path, name);
        if name.is_empty() || name.len() > ID_MAX_BYTES || name.chars().any(char::is_control) {
            let what = format!("a port's name has 1 to {ID_MAX_BYTES} bytes, none a control");
            out.add(path.as_str(), what);
        }
        if let Some(port) = Port::read(value, path, known, out) {
            ports.insert(name.to_owned(), port);
        }
    }
    ports
}

#[derive(Clone, Copy)]
enum Kind {
    Static,
    Variable,
    Connection,
    Expression,
}

const KINDS: &[(&str, Kind)] = &[
    ("static", Kind::Static),
    ("variable", Kind::Variable),
    ("connection", Kind::Connection),
    ("expression", Kind::Expression),
];

impl Port {
    fn read(value: &Value, path: String, known: &Known<'_>, out: &mut Problems) -> Option<Self> {
        let fields = Fields::of(value, path, "the port", out)?;
        fields.required("type", out)?;
        match fields.word("type", KINDS, out)? {
            Kind::Static => {
                fields.only(&["type", "value"], out);
                fields.required("value", out).cloned().map(Self::Static)
            }
            Kind::Variable => {
                fields.only(&["type", "variableName", "optional"], out);
                let optional = fields.flag("optional", out);
                let name = fields.required_name("variableName", ID_MAX_BYTES, out)?;
                let declared = || known.variables.iter().map(|one| one.name.as_str());
                if !optional && !declared().any(|one| one == name) {
                    let hint = out.hint(name, declared());
                    let what = format!(
                        "no variable is named {}; {hint}, or say that the port is `optional`",
                        quoted(name)
                    );
                    out.add(fields.under("variableName"), what);
                }
                Some(Self::Variable { name: name.to_owned(), optional })
            }
            Kind::Connection => {
                fields.only(&["type", "nodeId", "outputKey", "optional"], out);
                let optional = fields.flag("optional", out);
                let output = fields.required_name("outputKey", ID_MAX_BYTES, out);
                let node = node_named(&fields, "nodeId", known.nodes, out);
                Some(Self::Connection { node: node?, output: output?.to_owned(), optional })
            }
            Kind::Expression => {
                fields.only(&["type", "expression"], out);
                let text = fields.required_text("expression", out)?;
                let parsed = Expression::parse(text);
                let parsed = parsed.map_err(|what| out.add(fields.under("expression"), what));
                parsed.ok().map(Self::Expression)
            }
        }
    }
}

/// The index of the node that `key` names.
pub(super) fn node_named(
    fields: &Fields<'_>,
    key: &str,
    nodes: &BTreeMap<&str, usize>,
    out: &mut Problems,
) -> Option<usize> {
    let id = fields.required_name(key, ID_MAX_BYTES, out)?;
    let node = nodes.get(id).copied();
    if node.is_none() {
        let hint = out.hint(id, nodes.keys().copied());
        let id = quoted(id);
        out.add(fields.under(key), format!("no node has the id {id}; {hint}"));
    }
    node
}
