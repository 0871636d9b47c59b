//! Templates in the configuration of an integration: `{secret:NAME}` and `{field:NAME}`, which are
//! replaced before a guest sees the value.
//!
//! A name extends to the next `}`. Text that is not a template stays as it is, and so does what
//! replaces a template: it is not searched for templates again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memchr::memchr;
use sandglass_model::{Rejection, RejectionKind};
use sandglass_source::shortened;
use serde_json::Value;

use crate::capability::fields::as_text;
use crate::opaque::opaque;
use crate::rejection::rejection;
use crate::secret::{Answer, Secret};

/// Most bytes of all values of a configuration whose templates are replaced: as much as an action's
/// parameters may have. The values of fields and secrets come from outside of the spec.
pub const RESOLVED_MAX_BYTES: usize = 1 << 20;

/// Longest quotation of a configuration in a message, in characters.
const QUOTED_CHARS: usize = 200;

/// Where the replacement of a template comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// The secrets that the integration is granted.
    Secret,
    /// The fields of the entity.
    Field,
}

const KINDS: [(&str, TemplateKind); 2] =
    [("{secret:", TemplateKind::Secret), ("{field:", TemplateKind::Field)];

/// A template in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template<'a> {
    /// Where its replacement comes from.
    pub kind: TemplateKind,
    /// The name of the secret or the field.
    pub name: &'a str,
    /// The template as it is written.
    pub text: &'a str,
}

/// The templates of `value`, each after the text before it.
fn split(value: &str) -> impl Iterator<Item = (&str, Template<'_>)> {
    let mut rest = value;
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let at = from + memchr(b'{', &rest.as_bytes()[from..])?;
            let (before, text) = rest.split_at(at);
            let begun = KINDS.iter().find(|(prefix, _)| text.starts_with(prefix));
            let Some((prefix, kind)) = begun else {
                from = at + 1;
                continue;
            };
            // If there is no end here, there is none for a later template either.
            let (name, _) = text[prefix.len()..].split_once('}')?;
            let text = &text[..=prefix.len() + name.len()];
            rest = &rest[at + text.len()..];
            from = 0;
            return Some((before, Template { kind: *kind, name, text }));
        }
    })
}

/// The templates of `value`.
pub fn templates(value: &str) -> impl Iterator<Item = Template<'_>> {
    split(value).map(|(_, template)| template)
}

/// Whether a value of `config` has a template.
#[must_use]
pub fn has_templates(config: &BTreeMap<String, String>) -> bool {
    config.values().any(|value| templates(value).next().is_some())
}

/// What the templates of a configuration are replaced by.
#[derive(Clone, Default)]
pub struct Resolved {
    /// The configuration with the values of secrets; `None` if it has no templates.
    pub config: Option<BTreeMap<String, String>>,
    /// The secrets in it, by name.
    pub secrets: BTreeMap<String, Secret>,
}

opaque!(Resolved as "Resolved" { secrets });

/// Replaces the templates of `config` by the fields in `entity_state` and by the secrets that
/// `secret` returns, each of which is requested once.
///
/// # Errors
/// One cannot be replaced, or the result is too large. The message names the key and the template,
/// and contains no other value.
pub async fn resolve<'a>(
    config: &'a BTreeMap<String, String>,
    entity_state: &Value,
    secret: impl Fn(&'a str) -> Answer<'a, Option<Secret>>,
) -> Result<Resolved, Rejection> {
    let (mut replaced, mut secrets) = (BTreeMap::new(), BTreeMap::<String, Secret>::new());
    let mut room = RESOLVED_MAX_BYTES;
    for (key, value) in config {
        let (mut whole, mut rest) = (String::with_capacity(value.len()), value.as_str());
        let mut add = |whole: &mut String, part: &str| {
            room = room.checked_sub(part.len()).ok_or_else(too_large)?;
            whole.push_str(part);
            Ok::<(), Rejection>(())
        };
        for (before, template) in split(value) {
            rest = &rest[before.len() + template.text.len()..];
            add(&mut whole, before)?;
            let Template { kind, name, .. } = template;
            match kind {
                TemplateKind::Field => {
                    let field = field(entity_state, name);
                    add(&mut whole, &field.ok_or_else(|| no_field(key, template))?)?;
                }
                TemplateKind::Secret => {
                    if !secrets.contains_key(name) {
                        let value = secret(name).await.ok_or_else(|| no_secret(key, template))?;
                        secrets.insert(name.to_owned(), value);
                    }
                    add(&mut whole, secrets[name].expose())?;
                }
            }
        }
        add(&mut whole, rest)?;
        replaced.insert(key.clone(), whole);
    }
    Ok(Resolved { config: Some(replaced), secrets })
}

/// Replaces the fields in `value`, the value of `key`, as [`resolve`] does. Secrets stay templates.
///
/// # Errors
/// There is no such field, or the result is too large.
pub fn replace_fields(key: &str, value: &str, entity_state: &Value) -> Result<String, Rejection> {
    let (mut whole, mut rest) = (String::new(), value);
    for (before, template) in split(value) {
        rest = &rest[before.len() + template.text.len()..];
        whole.push_str(before);
        whole.push_str(&match template.kind {
            TemplateKind::Field => {
                field(entity_state, template.name).ok_or_else(|| no_field(key, template))?
            }
            TemplateKind::Secret => template.text.into(),
        });
        if whole.len() > RESOLVED_MAX_BYTES {
            return Err(too_large());
        }
    }
    whole.push_str(rest);
    Ok(whole)
}

/// A field of the entity as text: of the object `fields` in its state, or else of the state itself.
fn field<'a>(entity_state: &'a Value, name: &str) -> Option<Cow<'a, str>> {
    let fields = entity_state.get("fields").filter(|fields| fields.is_object());
    fields.unwrap_or(entity_state).get(name).map(as_text)
}

fn no_field(key: &str, template: Template<'_>) -> Rejection {
    let what_to_do = "its fields are `Id`, `Status`, its variables, and the parameters of the \
                      actions that it has taken";
    unresolved(key, template, &format!("the entity has no such field; {what_to_do}"))
}

fn no_secret(key: &str, template: Template<'_>) -> Rejection {
    let what_to_do = "add its name to `secrets` in `[grants]` of the manifest, and give it a value";
    let why = format!("there is no such secret for this integration; {what_to_do}");
    unresolved(key, template, &why)
}

fn unresolved(key: &str, template: Template<'_>, why: &str) -> Rejection {
    let (key, text) = (shortened(key, QUOTED_CHARS), shortened(template.text, QUOTED_CHARS));
    let message = format!("configuration `{key}`: `{text}` cannot be replaced: {why}");
    rejection(RejectionKind::UnresolvedTemplate, message)
}

fn too_large() -> Rejection {
    let message = format!(
        "the configuration has more than {RESOLVED_MAX_BYTES} bytes with its templates replaced; \
         the handler can read large fields and secrets itself"
    );
    rejection(RejectionKind::UnresolvedTemplate, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;

    fn secret_of(name: &str) -> Option<Secret> {
        match name {
            "KEY" => Some(Secret::new("hunter22")),
            "NESTED" => Some(Secret::new("{secret:KEY}{field:n}")),
            "LARGE" => Some(Secret::new("x".repeat(RESOLVED_MAX_BYTES))),
            _ => None,
        }
    }

    fn resolved(config: &[(&str, &str)], state: &Value) -> Result<Resolved, Rejection> {
        let config = config.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let secret =
            |name: &str| -> Answer<'_, _> { Box::pin(std::future::ready(secret_of(name))) };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(resolve(&config, state, secret))
    }

    fn one(value: &str, state: &Value) -> Result<String, Rejection> {
        Ok(resolved(&[("key", value)], state)?.config.expect("it is always there")["key"].clone())
    }

    #[test]
    fn each_template_is_replaced_once_and_all_else_stays() {
        let state = json!({ "fields": {
            "n": 7, "t": "a \"b\"", "list": [1, "x"], "none": null, "T": "{secret:KEY}",
        } });
        for (value, expected) in [
            ("Bearer {secret:KEY}", "Bearer hunter22"),
            ("{secret:KEY}{secret:KEY}-{field:n}", "hunter22hunter22-7"),
            (r#"{"Authorization":"{secret:KEY}"}"#, r#"{"Authorization":"hunter22"}"#),
            ("{{secret:KEY}}", "{hunter22}"),
            ("{field:t}|{field:list}|{field:none}", r#"a "b"|[1,"x"]|"#),
            ("{field:T}{secret:NESTED}", "{secret:KEY}{secret:KEY}{field:n}"),
            ("{field:n} {secret:KEY", "7 {secret:KEY"),
            ("{Secret:KEY} { secret:KEY} {x} {field:n}", "{Secret:KEY} { secret:KEY} {x} 7"),
        ] {
            assert_eq!(one(value, &state), Ok(expected.to_owned()), "{value}");
        }
        assert_eq!(one("{field:n}", &json!({ "n": true, "fields": 3 })), Ok("true".to_owned()));
    }

    #[test]
    fn fields_are_replaced_without_secrets() {
        let state = json!({ "fields": { "n": 7, "large": "x".repeat(RESOLVED_MAX_BYTES / 2) } });
        let replaced = |value: &str| replace_fields("key", value, &state);
        assert_eq!(replaced("a{field:n}{secret:KEY}b"), Ok("a7{secret:KEY}b".to_owned()));
        let missing = replaced("{field:other}").expect_err("there is none").message;
        assert!(missing.starts_with("configuration `key`: `{field:other}` cannot"), "{missing}");
        assert!(replaced(&"{field:large}".repeat(2)).is_ok());
        assert!(replaced(&"{field:large}".repeat(3)).is_err());
    }

    #[test]
    fn a_value_without_a_template_is_not_changed() {
        for value in ["{secret:KEY", "{uuid} }", "{secret", "", "{{field:"] {
            let config = [("{field:n}".to_owned(), value.to_owned())].into();
            assert!(!has_templates(&config), "{value}");
            assert_eq!(one(value, &Value::Null), Ok(value.to_owned()));
        }
    }

    #[test]
    fn what_cannot_be_replaced_is_named_and_nothing_else_is() {
        let state = json!({ "fields": { "known": "f-value" } });
        for template in ["{secret:NONE}", "{secret:}", "{secret: KEY}", "{field:other}", "{field:}"]
        {
            let config = [("a", "{secret:KEY}{field:known}"), ("key", &*format!("x{template}y"))];
            let rejection = resolved(&config, &state).expect_err("it has no value");
            assert_eq!(rejection.kind, RejectionKind::UnresolvedTemplate);
            let named = format!("configuration `key`: `{template}` cannot be replaced");
            assert!(rejection.message.starts_with(&named), "{rejection}");
            assert!(!rejection.message.contains("hunter22"), "{rejection}");
            assert!(!rejection.message.contains("f-value"), "{rejection}");
        }
        let nested = one("{secret:{secret:KEY}}", &state).expect_err("no secret has such a name");
        assert!(nested.message.contains("`{secret:{secret:KEY}`"), "{nested}");
        let long = one(&format!("{{field:{}}}", "ö".repeat(100_000)), &state);
        assert!(long.expect_err("no field has such a name").message.len() < 1_000);
        let hostile = one("{field:\u{1b}[2J}", &state).expect_err("no field has such a name");
        assert!(!hostile.message.contains('\u{1b}'), "{hostile}");
    }

    #[test]
    fn the_result_is_bounded() {
        let full = one("{secret:LARGE}", &Value::Null).expect("exactly the bound");
        assert_eq!(full.len(), RESOLVED_MAX_BYTES);
        for value in ["{secret:LARGE}x", "x{secret:LARGE}", "{secret:LARGE}{secret:KEY}"] {
            let rejection = one(value, &Value::Null).expect_err("too large");
            assert!(rejection.message.contains("1048576 bytes"), "{rejection}");
        }
    }

    #[tokio::test]
    async fn a_secret_is_requested_once() {
        let asked = Cell::new(0);
        let config: BTreeMap<String, String> =
            ["a", "b"].map(|key| (key.to_owned(), "{secret:KEY}{secret:KEY}".to_owned())).into();
        let resolved = resolve(&config, &Value::Null, |name| {
            asked.set(asked.get() + 1);
            Box::pin(std::future::ready(secret_of(name)))
        });
        let resolved = resolved.await.expect("it is there");
        assert_eq!((asked.get(), resolved.secrets.len()), (1, 1));
    }
}
