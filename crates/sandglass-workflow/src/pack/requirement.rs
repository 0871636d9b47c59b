//! Requirements of packs that this host does not meet. A pack with such a requirement is refused when it
//! is read: otherwise its nodes would fail in the middle of a run.

use serde_json::Value;

use crate::definition::{ID_MAX_BYTES, PROSE_MAX_BYTES};
use crate::fields::{Fields, Pattern};
use crate::problem::quoted;

/// The primitives that packs receive: `openwop_now_ms` returns the time, and a replay returns the recorded
/// time.
const GIVEN: &[&str] = &["clock"];

/// All primitives of the protocol.
const PRIMITIVES: [&str; 8] =
    ["net.dns", "net.outbound", "crypto", "subprocess", "fs.read", "fs.write", "env.read", "clock"];

const LISTED_MAX: usize = 100;

const PROVIDER: Pattern = Pattern {
    form: "a lower-case letter, then lower-case letters, digits and `-`",
    extra: "-",
    has_upper: false,
};

const CONNECTOR_ID: Pattern = Pattern {
    form: "a lower-case letter, then lower-case letters, digits, `.` and `-`",
    extra: ".-",
    has_upper: false,
};

/// Checks `runtime.requires`.
pub(super) fn primitives(runtime: &Fields<'_>) {
    for primitive in runtime.unique_texts("requires", LISTED_MAX) {
        if GIVEN.contains(&primitive) {
            continue;
        }
        let name = quoted(primitive);
        let what = if PRIMITIVES.contains(&primitive) {
            let given = GIVEN.join(", ");
            format!("the pack requires {name}, and this host provides only {given}")
        } else {
            let hint = runtime.out.hint(primitive, PRIMITIVES);
            format!("no primitive is named {name}; {hint}")
        };
        runtime.report("requires", what);
    }
}

/// Checks the requirements of a node.
pub(super) fn of_node(node: &Fields<'_>) {
    for (key, what) in [
        ("requiresSecrets", "secrets"),
        ("requiredCredentials", "credentials"),
        ("requiredModelCapabilities", "a model"),
    ] {
        if !node.items(key, LISTED_MAX).is_empty() {
            node.report(key, format!("the node needs {what}, and this host provides none"));
        }
    }
    if node.value("auth").is_some() {
        node.report("auth", "the node needs authorization by OAuth, and this host does no OAuth");
    }
    node.child("fallbackModel", "the model", |model| {
        model.required_identifier("provider", ID_MAX_BYTES, &PROVIDER);
        model.required_name("model", ID_MAX_BYTES);
    });
}

/// Checks the requirements of a connector, and whether its actions and triggers are nodes of the pack.
pub(super) fn of_connector(connector: &Fields<'_>, nodes: &[&str]) {
    connector.required_identifier("id", ID_MAX_BYTES, &CONNECTOR_ID);
    connector.required_name("displayName", PROSE_MAX_BYTES);
    if connector.value("auth").is_some() {
        connector.report("auth", "the connector needs credentials, and this host provides none");
    }
    for (path, value) in connector.items("actions", LISTED_MAX) {
        Fields::closed(value, path, "the action", connector.out, |action| {
            action.required_name("displayName", PROSE_MAX_BYTES);
            action.flag("idempotent");
            action.flag("paginated");
            action.child("rateLimit", "`rateLimit`", |limit| {
                limit.whole("requests", 1..=u64::MAX);
                limit.whole("perSeconds", 1..=u64::MAX);
            });
            if let Some(type_id) = action.required_text("typeId") {
                check_node(action, "typeId", type_id, nodes);
            }
        });
    }
    for trigger in connector.texts("triggers", LISTED_MAX) {
        check_node(connector, "triggers", trigger, nodes);
    }
}

/// Checks that `type_id`, the value of `key`, is one of the `nodes`.
fn check_node(fields: &Fields<'_>, key: &str, type_id: &str, nodes: &[&str]) {
    if !nodes.contains(&type_id) {
        let hint = fields.out.hint(type_id, nodes.iter().copied());
        fields.report(key, format!("no node of the pack is of type {}; {hint}", quoted(type_id)));
    }
}

/// Checks the capabilities that the pack needs of its host, unless they are declared optional.
pub(super) fn of_host(pack: &Fields<'_>) {
    let meta = pack.open_child("peerDependenciesMeta", "`peerDependenciesMeta`");
    for (name, _) in meta.iter().flat_map(Fields::entries) {
        let meta = meta.as_ref();
        meta.and_then(|meta| meta.child(name, "the entry", |entry| entry.flag("optional")));
    }
    let Some(peers) = pack.open_child("peerDependencies", "`peerDependencies`") else { return };
    for (name, _) in peers.entries() {
        peers.text(name);
        let about = meta.as_ref().and_then(|meta| meta.value(name));
        if about.and_then(|about| about.get("optional")) == Some(&Value::Bool(true)) {
            continue;
        }
        let what = format!(
            "the pack needs {} of its host, and this one has no such capability; mark it as \
             `optional` in `peerDependenciesMeta` if the pack works without",
            quoted(name)
        );
        peers.report(name, what);
    }
}

/// Refuses signed packs, because the host does not check signatures.
pub(super) fn signature(pack: &Fields<'_>) {
    let signature = pack.child("signing", "`signing`", |signing| {
        signing.text("publicKeyRef");
        signing.text("signatureRef");
        let method = signing.word("method", &[("manual", "manual"), ("sigstore", "sigstore")]);
        signing.entries().next().map(|_| method.unwrap_or("manual"))
    });
    if let Some(method) = signature.flatten() {
        let what = format!(
            "the pack is signed (`{method}`), and this host checks no such signatures; check it \
             yourself, then remove `signing` from the manifest"
        );
        pack.report("signing", what);
    }
}
