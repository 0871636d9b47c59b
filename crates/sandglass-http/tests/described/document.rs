//! Checks responses against an OpenAPI document.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::client::Answer;

pub(crate) struct Document {
    pub(crate) text: Value,
    /// The schema of errors that belong to no operation.
    unserved: Value,
    /// By the texts of their schemas.
    validators: Mutex<BTreeMap<String, Arc<Validator>>>,
}

/// The methods that a path item can have.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

impl Document {
    /// Fails if `document` is not an OpenAPI 3.1 document. `envelope` is the schema of errors.
    pub(crate) fn of(document: Value, envelope: &str) -> Self {
        assert_eq!(document["openapi"], "3.1.0");
        let text = document.to_string();
        for reference in text.split(r##""$ref":"#"##).skip(1) {
            let place = reference.split('"').next().expect("it ends");
            assert!(document.pointer(place).is_some(), "{place} is nowhere");
        }
        let unserved = json!({"$ref": format!("#/components/schemas/{envelope}")});
        Self { text: document, unserved, validators: Mutex::default() }
    }

    /// Every operation, as `METHOD template`.
    pub(crate) fn operations(&self) -> Vec<String> {
        let paths = self.text["paths"].as_object().expect("paths");
        let of = |(template, item): (&String, &Value)| {
            let keys = item.as_object().expect("a path item").keys();
            let methods = keys.filter(|key| METHODS.contains(&key.as_str()));
            let named = |method: &String| format!("{} {template}", method.to_uppercase());
            methods.map(named).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }

    /// Fails if the document does not describe the response. Returns the operation, if there is one.
    #[track_caller]
    pub(crate) fn check(&self, method: &str, target: &str, answer: &Answer) -> Option<String> {
        let path = target.split('?').next().unwrap_or_default();
        let templates = self.text["paths"].as_object().expect("paths").keys();
        // The one that says most of it by itself (OpenAPI, 4.8.8.2).
        let named = templates.filter(|template| fits(template, path));
        let template = named.max_by_key(|template| literals(template));
        let operation = template.and_then(|template| {
            let found = &self.text["paths"][template][method.to_lowercase()];
            found.is_object().then(|| (format!("{method} {template}"), found))
        });
        let Some((name, operation)) = operation else {
            self.require(&self.unserved, &answer.json());
            return None;
        };
        let responses = &operation["responses"];
        let class = format!("{}XX", answer.status / 100);
        let response = responses.get(answer.status.to_string()).or_else(|| responses.get(&class));
        let response = response.unwrap_or_else(|| panic!("{name} answers {}", answer.text()));
        let response = self.resolved(response);
        self.check_headers(&name, response, answer);
        let Some(content) = response["content"].as_object() else {
            assert!(answer.body.is_empty(), "{name} answers {}", answer.text());
            return Some(name);
        };
        let sent = answer.header("content-type").unwrap_or_default();
        let media = sent.split(';').next().unwrap_or_default();
        let described = content.get(media);
        let described = described.unwrap_or_else(|| panic!("{name} answers {media}"));
        if media == "application/json" {
            self.require(&described["schema"], &answer.json());
        }
        Some(name)
    }

    #[track_caller]
    fn check_headers(&self, name: &str, response: &Value, answer: &Answer) {
        for (header, described) in response["headers"].as_object().into_iter().flatten() {
            let described = self.resolved(described);
            let Some(sent) = answer.header(&header.to_lowercase()) else {
                let required = described["required"] == true;
                assert!(!required, "{name} has no {header}: {}", answer.text());
                continue;
            };
            let number = sent.parse::<u64>().map(Value::from);
            let schema = &described["schema"];
            let is_text = !matches!(schema["type"].as_str(), Some("integer" | "number"));
            let value = number.ok().filter(|_| !is_text);
            self.require(schema, &value.unwrap_or_else(|| sent.into()));
        }
    }

    /// What `value` refers to, or it itself.
    pub(crate) fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        let place = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        place.map_or(value, |place| self.text.pointer(place).expect("checked before"))
    }

    #[track_caller]
    fn require(&self, schema: &Value, value: &Value) {
        if let Err(error) = self.validator(schema).validate(value) {
            panic!("{error} at `{}` in {value:#}", error.instance_path());
        }
    }

    /// Says whether values are ones of `schema`, which may refer to components.
    pub(crate) fn validator(&self, schema: &Value) -> Arc<Validator> {
        let mut known = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let mut whole = schema.clone();
            whole["components"] = self.text["components"].clone();
            let options = jsonschema::options().should_validate_formats(true);
            Arc::new(options.build(&whole).expect("a schema"))
        };
        Arc::clone(known.entry(schema.to_string()).or_insert_with(make))
    }
}

/// The length of a template without its parameters.
fn literals(template: &str) -> usize {
    let (mut inside, mut count) = (false, 0);
    for letter in template.chars() {
        match letter {
            '{' => inside = true,
            '}' => inside = false,
            _ => count += usize::from(!inside),
        }
    }
    count
}

fn fits(template: &str, path: &str) -> bool {
    let (own, asked) = (template.split('/'), path.split('/'));
    let same = |(own, asked): (&str, &str)| match own.split_once('}') {
        Some((_, end)) => asked.len() > end.len() && asked.ends_with(end),
        None => own == asked,
    };
    own.clone().count() == asked.clone().count() && own.zip(asked).all(same)
}
