//! The queries of the files in `dashboards/`. Also compiled into the example
//! `queries`, whose output is asked of a live Prometheus.

use serde_json::Value;

const GRAFANA: &str = include_str!("../../../../dashboards/grafana/handler-liveness.json");
const RULES: &str = include_str!("../../../../dashboards/prometheus/rules.yml");

/// The expressions of the Grafana dashboard's panels, its variables filled in as
/// Grafana does when all are chosen.
pub(crate) fn grafana() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(GRAFANA).expect("the dashboard is JSON");
    texts_of(&dashboard, "expr")
        .into_iter()
        .map(|text| {
            let text = text.replace("$__rate_interval", "5m");
            text.replace("$entity_type", ".*").replace("$action", ".*")
        })
        .collect()
}

/// The rules: the name that each records, if it records, and its expression.
pub(crate) fn rules() -> Vec<(Option<&'static str>, &'static str)> {
    let mut rules = Vec::new();
    let mut record = None;
    for line in RULES.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- record: ") {
            record = Some(name);
        } else if let Some(expr) = line.strip_prefix("expr: ") {
            rules.push((record.take(), expr));
        }
    }
    rules
}

/// The names of the alerting rules.
#[allow(dead_code, reason = "the example that includes this asks for queries alone")]
pub(crate) fn alerts() -> Vec<&'static str> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

/// Each text that stands under `key`, however deep.
pub(crate) fn texts_of<'v>(value: &'v Value, key: &str) -> Vec<&'v str> {
    match value {
        Value::Array(items) => items.iter().flat_map(|item| texts_of(item, key)).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, field)| match field {
                Value::String(text) if name == key => vec![text.as_str()],
                other => texts_of(other, key),
            })
            .collect(),
        _ => Vec::new(),
    }
}
