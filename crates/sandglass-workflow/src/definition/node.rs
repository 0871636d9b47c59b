//! Nodes, and the sources of the values of their ports.

use std::collections::BTreeMap;

use sandglass_model::Object;
use serde_json::Value;

use super::{ID_MAX_BYTES, OnCrash, PORTS_MAX, PROSE_MAX_BYTES, Variable};
use crate::expression::Expression;
use crate::fields::{Fields, Pattern, is_name};
use crate::problem::{Problems, quoted};

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// Its id, which is unique in the definition.
    pub id: String,
    /// What it executes.
    pub type_id: String,
    /// Its name for people.
    pub name: String,
    /// Its constant configuration.
    pub config: Object,
    /// The sources of the values of its ports, by port.
    pub inputs: BTreeMap<String, Port>,
    /// Its other settings, as written.
    pub settings: Object,
    /// What happens if a crash interrupts it, if it has a setting of its own.
    pub on_crash: Option<OnCrash>,
    /// The name of its credential.
    pub credentials_ref: Option<String>,
    /// Whether runs skip it.
    pub disabled: bool,
    /// The outputs whose values are masked (true), and those that are not although their pack
    /// declares them sensitive (false).
    pub output_sensitivity: BTreeMap<String, bool>,
}

/// The source of the value of a port.
#[derive(Clone, Debug, PartialEq)]
pub enum Port {
    /// A constant.
    Static(Value),
    /// A variable.
    Variable {
        /// The variable; it is declared unless the port is optional.
        name: String,
        /// Whether it may be absent.
        optional: bool,
    },
    /// An output of a node.
    Connection {
        /// The index of the node.
        node: usize,
        /// The output.
        output: String,
        /// Whether it may be absent.
        optional: bool,
    },
    /// The value of an expression.
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
        out: &Problems,
    ) -> Option<Self> {
        Fields::closed(value, path, "the node", out, |fields| {
            let id = fields.required_name("id", ID_MAX_BYTES);
            let type_id = fields.required_identifier("typeId", ID_MAX_BYTES, &TYPE_ID);
            let name = fields.required_name("name", PROSE_MAX_BYTES);
            check_position(fields);
            fields.required("config");
            fields.required("inputs");
            check_ignored(fields);
            let settings = fields.open_child("settings", "`settings`");
            Some(Self {
                config: fields.object("config").unwrap_or_default(),
                inputs: ports(fields, known),
                on_crash: settings.and_then(|settings| OnCrash::read(&settings)),
                settings: fields.object("settings").unwrap_or_default(),
                credentials_ref: fields.text("credentialsRef").map(str::to_owned),
                disabled: fields.flag("disabled"),
                output_sensitivity: fields.flags("outputSensitivity"),
                id: id?.to_owned(),
                type_id: type_id?.to_owned(),
                name: name?.to_owned(),
            })
        })?
    }
}

/// The form of node types; the protocol's.
pub(crate) const TYPE_ID: Pattern = Pattern {
    form: "a lower-case letter, then letters, digits, `.`, `_` and `-`",
    extra: "._-",
    has_upper: true,
};

/// Checks the position in an editor.
pub(super) fn check_position(fields: &Fields<'_>) {
    fields.required("position");
    if let Some(position) = fields.open_child("position", "the position") {
        position.required_number("x");
        position.required_number("y");
    }
}

/// Checks what has no effect on a run.
fn check_ignored(fields: &Fields<'_>) {
    for key in ["groupId", "artifactType", "cardType"] {
        fields.text(key);
    }
    fields.prose("notes", PROSE_MAX_BYTES);
    fields.one_of("outputRole", &["primary", "secondary"]);
    fields.object("agent");
    fields.object("envelopeContract");
}

fn ports(node: &Fields<'_>, known: &Known<'_>) -> BTreeMap<String, Port> {
    let mut ports = BTreeMap::new();
    for (name, path, value) in node.named("inputs", PORTS_MAX) {
        if !is_name(name, ID_MAX_BYTES) {
            let what = format!("a port's name has 1 to {ID_MAX_BYTES} bytes, none a control");
            node.out.add(path.as_str(), what);
        }
        if let Some(port) = Port::read(value, path, known, node.out) {
            ports.insert(name.to_owned(), port);
        }
    }
    ports
}

impl Port {
    fn read(value: &Value, path: String, known: &Known<'_>, out: &Problems) -> Option<Self> {
        let fields = Fields::of(value, path, "the port", out)?;
        match fields.required_text("type")? {
            "static" => {
                fields.only(&["type", "value"]);
                fields.required("value").cloned().map(Self::Static)
            }
            "variable" => {
                fields.only(&["type", "variableName", "optional"]);
                let optional = fields.flag("optional");
                let name = fields.required_name("variableName", ID_MAX_BYTES)?;
                let declared = || known.variables.iter().map(|one| one.name.as_str());
                if !optional && !declared().any(|one| one == name) {
                    let hint = out.hint(name, declared());
                    let name = quoted(name);
                    fields.report(
                        "variableName",
                        format!("no variable is named {name}; {hint}, or make the port `optional`"),
                    );
                }
                Some(Self::Variable { name: name.to_owned(), optional })
            }
            "connection" => {
                fields.only(&["type", "nodeId", "outputKey", "optional"]);
                let optional = fields.flag("optional");
                let output = fields.required_name("outputKey", ID_MAX_BYTES);
                let node = node_named(&fields, "nodeId", known.nodes);
                Some(Self::Connection { node: node?, output: output?.to_owned(), optional })
            }
            "expression" => {
                fields.only(&["type", "expression"]);
                Expression::read(&fields, "expression").map(Self::Expression)
            }
            _ => {
                fields.one_of("type", &["static", "variable", "connection", "expression"]);
                None
            }
        }
    }
}

/// The index of the node that `key` names.
pub(super) fn node_named<'v>(
    fields: &Fields<'v>,
    key: &'v str,
    nodes: &BTreeMap<&str, usize>,
) -> Option<usize> {
    let id = fields.required_name(key, ID_MAX_BYTES)?;
    let node = nodes.get(id).copied();
    if node.is_none() {
        let hint = fields.out.hint(id, nodes.keys().copied());
        fields.report(key, format!("no node has the id {}; {hint}", quoted(id)));
    }
    node
}
