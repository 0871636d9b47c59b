//! Checks answers against an OpenAPI document.

use serde_json::{Value, json};

use crate::world::Answer;

pub(crate) struct Document(Value);

impl Document {
    pub(crate) fn of(document: Value) -> Self {
        assert_eq!(document["openapi"], "3.1.0");
        let text = document.to_string();
        for reference in text.split(r##""$ref":"#"##).skip(1) {
            let place = reference.split('"').next().expect("it ends");
            assert!(document.pointer(place).is_some(), "{place} is nowhere");
        }
        Self(document)
    }

    /// Every operation, as `METHOD template`.
    pub(crate) fn operations(&self) -> Vec<String> {
        let paths = self.0["paths"].as_object().expect("paths");
        let of = |(template, item): (&String, &Value)| {
            let methods = item.as_object().expect("a path item").keys();
            let named = |method: &String| format!("{} {template}", method.to_uppercase());
            methods.map(named).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }

    /// Fails where the answer isn't one that the document describes. Answers the
    /// operation, where there is one.
    #[track_caller]
    pub(crate) fn check(&self, method: &str, target: &str, answer: &Answer) -> Option<String> {
        let path = target.split('?').next().unwrap_or_default();
        let operations = self.operations();
        let named = operations.iter().find(|operation| {
            let (own, template) = operation.split_once(' ').expect("a method and a template");
            own == method && fits(template, path)
        });
        let Some(operation) = named else {
            self.require(&json!({"$ref": "#/components/schemas/Envelope"}), answer);
            return None;
        };
        let (_, template) = operation.split_once(' ').expect("as above");
        let responses = &self.0["paths"][template][method.to_lowercase()]["responses"];
        let class = format!("{}XX", answer.status / 100);
        let response = responses.get(answer.status.to_string()).or_else(|| responses.get(&class));
        let response = response.unwrap_or_else(|| panic!("{operation} answers {answer:?}"));
        let sent = answer.header("content-type").unwrap_or_default();
        let media = sent.split(';').next().unwrap_or_default();
        let content = response["content"].as_object().expect("each answer has a body");
        let described = content.get(media);
        let described = described.unwrap_or_else(|| panic!("{operation} answers {media}"));
        if media == "application/json" {
            self.require(&described["schema"], answer);
        }
        Some(operation.clone())
    }

    #[track_caller]
    fn require(&self, schema: &Value, answer: &Answer) {
        let mut whole = schema.clone();
        whole["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&whole).expect("a schema");
        let body = answer.json();
        if let Err(error) = validator.validate(&body) {
            panic!("{error} in {body:#}");
        }
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (own, asked) = (template.split('/'), path.split('/'));
    let same = |(own, asked): (&str, &str)| own == asked || own.starts_with('{');
    own.clone().count() == asked.clone().count() && own.zip(asked).all(same)
}
