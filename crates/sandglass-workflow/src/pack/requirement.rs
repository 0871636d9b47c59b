//! What packs ask of a host that this one doesn't give. A pack that asks for it is refused
//! when it is read: its nodes would fail in the middle of a run otherwise.

use serde_json::Value;

use crate::definition::{ID_MAX_BYTES, PROSE_MAX_BYTES};
use crate::fields::{Fields, Upper, is_identifier};
use crate::problem::{Problems, quoted, under};

/// Platform primitives that packs are given: `openwop_now_ms` tells the time, and a replay
/// tells the same one again.
const GIVEN: &[&str] = &["clock"];

/// All that the protocol names.
const PRIMITIVES: [&str; 8] =
    ["net.dns", "net.outbound", "crypto", "subprocess", "fs.read", "fs.write", "env.read", "clock"];

const LISTED_MAX: usize = 100;

/// What `runtime.requires` asks for.
pub(super) fn primitives(runtime: &Fields<'_>, out: &mut Problems) {
    for primitive in runtime.unique_texts("requires", LISTED_MAX, out) {
        if GIVEN.contains(&primitive) {
            continue;
        }
        let known = PRIMITIVES.contains(&primitive);
        let name = quoted(primitive);
        let what = if known {
            format!(
                "the pack requires {name}, and this host gives packs no more than {}",
                GIVEN.join(", ")
            )
        } else {
            let hint = out.hint(primitive, PRIMITIVES);
            format!("no primitive is named {name}; {hint}")
        };
        out.add(runtime.under("requires"), what);
    }
}

/// What a node asks for.
pub(super) fn of_node(node: &Fields<'_>, out: &mut Problems) {
    for (key, what) in [
        ("requiresSecrets", "secrets"),
        ("requiredCredentials", "credentials"),
        ("requiredModelCapabilities", "a model"),
    ] {
        if !node.items(key, LISTED_MAX, out).is_empty() {
            out.add(node.under(key), format!("the node needs {what}, and this host gives none"));
        }
    }
    if node.value("auth").is_some() {
        let what = "the node needs to be authorised by OAuth, and this host does no OAuth";
        out.add(node.under("auth"), what);
    }
    if let Some(model) = node.fields("fallbackModel", "the model", out) {
        model.only(&["provider", "model"], out);
        model.required_name("provider", ID_MAX_BYTES, out);
        let pattern = "a lower-case letter, then lower-case letters, digits and `-`";
        model.patterned("provider", pattern, |id| is_identifier(id, &['-'], Upper::Refused), out);
        model.required_name("model", ID_MAX_BYTES, out);
    }
}

/// What a connector asks for, and whether its actions and triggers are nodes of the pack.
pub(super) fn of_connector(connector: &Fields<'_>, nodes: &[&str], out: &mut Problems) {
    connector.only(&["id", "displayName", "auth", "actions", "triggers"], out);
    connector.required_name("id", ID_MAX_BYTES, out);
    let pattern = "a lower-case letter, then lower-case letters, digits, `.` and `-`";
    let is_id = |id: &str| is_identifier(id, &['.', '-'], Upper::Refused);
    connector.patterned("id", pattern, is_id, out);
    connector.required_name("displayName", PROSE_MAX_BYTES, out);
    if connector.value("auth").is_some() {
        let what = "the connector needs credentials, and this host gives none";
        out.add(connector.under("auth"), what);
    }
    for (path, value) in connector.items("actions", LISTED_MAX, out) {
        let Some(action) = Fields::of(value, path, "the action", out) else { continue };
        let keys = ["typeId", "displayName", "idempotent", "rateLimit", "paginated"];
        action.only(&keys, out);
        action.required_name("displayName", PROSE_MAX_BYTES, out);
        action.flag("idempotent", out);
        action.flag("paginated", out);
        if let Some(limit) = action.fields("rateLimit", "`rateLimit`", out) {
            limit.only(&["requests", "perSeconds"], out);
            limit.whole("requests", 1..=u64::MAX, out);
            limit.whole("perSeconds", 1..=u64::MAX, out);
        }
        if let Some(type_id) = action.required_text("typeId", out) {
            known(type_id, action.under("typeId"), nodes, out);
        }
    }
    for trigger in connector.texts("triggers", LISTED_MAX, out) {
        known(trigger, connector.under("triggers"), nodes, out);
    }
}

fn known(type_id: &str, path: String, nodes: &[&str], out: &mut Problems) {
    if !nodes.contains(&type_id) {
        let hint = out.hint(type_id, nodes.iter().copied());
        let what = format!("no node of the pack is of type {}; {hint}", quoted(type_id));
        out.add(path, what);
    }
}

/// Capabilities of the host that the pack needs and that are not said to be optional.
pub(super) fn of_host(pack: &Fields<'_>, out: &mut Problems) {
    let meta = pack.fields("peerDependenciesMeta", "`peerDependenciesMeta`", out);
    for (name, _) in meta.iter().flat_map(Fields::entries) {
        let about = meta.as_ref().and_then(|meta| meta.fields(name, "what is said of it", out));
        if let Some(about) = about {
            about.only(&["optional"], out);
            about.flag("optional", out);
        }
    }
    let Some(peers) = pack.fields("peerDependencies", "`peerDependencies`", out) else { return };
    for (name, _) in peers.entries() {
        peers.text(name, out);
        let about = meta.as_ref().and_then(|meta| meta.value(name));
        if about.and_then(|about| about.get("optional")) == Some(&Value::Bool(true)) {
            continue;
        }
        let what = format!(
            "the pack needs {} of its host, and this one has no such capability; mark it as \
             `optional` in `peerDependenciesMeta` if the pack works without",
            quoted(name)
        );
        out.add(under(&peers.path, name), what);
    }
}

/// Signatures, none of which are checked.
pub(super) fn signature(pack: &Fields<'_>, out: &mut Problems) {
    let Some(signing) = pack.fields("signing", "`signing`", out) else { return };
    signing.only(&["publicKeyRef", "signatureRef", "method"], out);
    signing.text("publicKeyRef", out);
    signing.text("signatureRef", out);
    if signing.entries().next().is_none() {
        return;
    }
    let method = signing.word("method", &[("manual", "manual"), ("sigstore", "sigstore")], out);
    let method = method.unwrap_or("manual");
    let what = format!(
        "the pack is signed (`{method}`), and this host checks no such signatures; check it \
         yourself, then take `signing` out of the manifest"
    );
    out.add(signing.path, what);
}
