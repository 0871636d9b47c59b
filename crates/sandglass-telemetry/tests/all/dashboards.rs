//! What dashboards, monitors and rules ask for exists in the table, with the
//! labels that they use.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use sandglass_telemetry::Prefix;
use sandglass_telemetry::table::{CONTRACT, Definition, Kind, TABLE};
use serde_json::Value;

use crate::queries;

/// Labels that the scraper adds to every series.
const FROM_SCRAPING: [&str; 3] = ["instance", "job", "host"];

/// What a query asks of one metric.
#[derive(Debug)]
struct Asked {
    name: String,
    labels: BTreeSet<String>,
}

/// Walks a PromQL expression, noting each metric with the labels that it is
/// chosen and grouped by.
#[derive(Default)]
struct Reading {
    grouped_by: Vec<Vec<String>>,
    asked: Vec<Asked>,
}

impl Reading {
    fn select(&mut self, selector: &VectorSelector) {
        let chosen = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
        let grouped = self.grouped_by.iter().flatten().cloned();
        let name = selector.name.clone().expect("each selector names its metric");
        self.asked.push(Asked { name, labels: chosen.chain(grouped).collect() });
    }
}

impl ExprVisitor for Reading {
    type Error = Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        match expr {
            Expr::VectorSelector(selector) => self.select(selector),
            Expr::MatrixSelector(matrix) => self.select(&matrix.vs),
            Expr::Aggregate(aggregate) => self.grouped_by.push(match &aggregate.modifier {
                Some(LabelModifier::Include(labels)) => labels.labels.clone(),
                Some(LabelModifier::Exclude(_)) => panic!("use `by` instead of `without`: {expr}"),
                None => Vec::new(),
            }),
            _ => {}
        }
        Ok(true)
    }

    fn post_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        if matches!(expr, Expr::Aggregate(_)) {
            self.grouped_by.pop();
        }
        Ok(true)
    }
}

fn metrics_queried_by_promql(query: &str) -> Vec<Asked> {
    let expr = parser::parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    let mut reading = Reading::default();
    let Ok(_) = walk_expr(&mut reading, &expr);
    assert!(!reading.asked.is_empty(), "{query} asks for nothing");
    reading.asked
}

/// The metric that a Prometheus series belongs to, and the labels that it has.
fn find_for_prometheus(series: &str) -> Option<(&'static Definition, BTreeSet<&'static str>)> {
    TABLE.iter().find_map(|row| {
        let suffix = series.strip_prefix(&row.full_name(&Prefix::default()))?;
        let exists = match (row.kind, suffix) {
            (Kind::Histogram, "_bucket" | "_sum" | "_count") => true,
            (kind, suffix) => kind != Kind::Histogram && suffix.is_empty(),
        };
        let le = (suffix == "_bucket").then_some("le");
        exists.then(|| (row, row.labels.iter().copied().chain(le).collect()))
    })
}

fn check_promql(query: &str, recorded: &BTreeMap<&str, BTreeSet<String>>) -> Vec<&'static str> {
    let mut contract = Vec::new();
    for Asked { name, labels } in metrics_queried_by_promql(query) {
        let has: BTreeSet<String> = if let Some(labels) = recorded.get(name.as_str()) {
            labels.clone()
        } else {
            let (row, labels) = find_for_prometheus(&name)
                .unwrap_or_else(|| panic!("{query}: {name} is not reported"));
            contract.extend(CONTRACT.iter().filter(|name| **name == row.name));
            labels.into_iter().map(str::to_owned).collect()
        };
        for label in labels {
            assert!(
                has.contains(&label) || FROM_SCRAPING.contains(&label.as_str()),
                "{query}: {name} has no label {label}"
            );
        }
    }
    contract
}

#[test]
fn the_grafana_dashboard_queries_existing_metrics() {
    let queries = queries::grafana();
    assert!(queries.len() >= 20, "{}", queries.len());
    let contract: BTreeSet<&str> =
        queries.iter().flat_map(|query| check_promql(query, &BTreeMap::new())).collect();
    assert_eq!(contract, CONTRACT.into());
}

#[test]
fn the_variables_of_the_grafana_dashboard_query_existing_labels() {
    let dashboard = include_str!("../../../../dashboards/grafana/handler-liveness.json");
    let dashboard: Value = serde_json::from_str(dashboard).expect("the dashboard is JSON");
    let queries = queries::texts_of(&dashboard["templating"], "definition");
    assert_eq!(queries.len(), 2);
    for query in queries {
        let inner = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
        let (selector, label) =
            inner.and_then(|inner| inner.rsplit_once(", ")).expect("label_values(series, label)");
        check_promql(selector, &BTreeMap::new());
        check_promql(&format!("sum by ({label}) ({selector})"), &BTreeMap::new());
    }
}

#[test]
fn the_grafana_dashboard_has_the_row_handler_liveness_and_describes_each_panel() {
    let dashboard = include_str!("../../../../dashboards/grafana/handler-liveness.json");
    let dashboard: Value = serde_json::from_str(dashboard).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert_eq!(panels[0]["type"], "row");
    assert_eq!(panels[0]["title"], "Handler Liveness");
    let mut ids = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title");
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        assert!(ids.insert(panel["id"].as_u64()), "{title} has the id of another panel");
    }
}

#[test]
fn the_prometheus_rules_query_existing_or_recorded_metrics() {
    let rules = queries::rules();
    let mut recorded = BTreeMap::new();
    for (record, expr) in &rules {
        if let Some(name) = record {
            // A rule is named by the labels that it keeps: level:metric:operation.
            let (level, _) = name.split_once(':').expect("level:metric:operation");
            let mut grouped = metrics_queried_by_promql(expr).remove(0).labels;
            grouped.remove("le");
            assert!(grouped.iter().all(|label| level.contains(label)), "{name}");
            recorded.insert(*name, grouped);
        }
    }
    assert!(recorded.len() >= 5 && rules.len() > recorded.len());
    let contract: BTreeSet<&str> =
        rules.iter().flat_map(|(_, expr)| check_promql(expr, &recorded)).collect();
    assert_eq!(contract, CONTRACT.into());
}

/// The metrics that a Datadog query asks for: `temper.NAME{tag:value,..} by {tag,..}`.
fn metrics_queried_by_datadog(query: &str) -> Vec<Asked> {
    let mut asked = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("temper.") {
        rest = &rest[at..];
        let (name, scoped) = rest.split_once('{').expect("a metric has a scope");
        let (scope, after) = scoped.split_once('}').expect("a scope ends");
        let chosen = scope.split(',').filter(|tag| *tag != "*").map(str::to_owned);
        let grouped = after.strip_prefix(" by {").and_then(|it| it.split_once('}'));
        let grouped = grouped.map_or("", |(tags, _)| tags).split(',').map(str::to_owned);
        let labels = chosen.chain(grouped).filter(|tag| !tag.is_empty()).collect();
        asked.push(Asked { name: name.to_owned(), labels });
        rest = after;
    }
    assert!(!asked.is_empty(), "{query} asks for nothing");
    asked
}

/// The metric that a Datadog name belongs to, as Datadog's OpenMetrics check
/// names it: counters lose `_total` and gain `.count`, histograms become three, and
/// under their own name those that are sent as distributions, too.
fn find_for_datadog(name: &str) -> Option<&'static Definition> {
    let name = name.strip_prefix("temper.")?;
    TABLE.iter().find(|row| match row.kind {
        Kind::Counter => name.strip_suffix(".count") == row.name.strip_suffix("_total"),
        Kind::Gauge => name == row.name,
        Kind::Histogram => match name.strip_prefix(row.name) {
            Some("") => is_distribution(row.name),
            Some(suffix) => [".bucket", ".sum", ".count"].contains(&suffix),
            None => false,
        },
    })
}

fn is_distribution(name: &str) -> bool {
    let check = include_str!("../../../../dashboards/datadog/openmetrics.yaml");
    let (_, instance) = check.split_once("histogram_buckets_as_distributions: true").expect("one");
    instance.lines().any(|line| line.trim() == format!("- ^{name}$"))
}

fn check_datadog(query: &str) -> Vec<&'static str> {
    let mut contract = Vec::new();
    for Asked { name, labels } in metrics_queried_by_datadog(query) {
        let row =
            find_for_datadog(&name).unwrap_or_else(|| panic!("{query}: {name} is not reported"));
        let of_distribution = row.kind == Kind::Histogram && name.ends_with(row.name);
        assert_eq!(query.starts_with('p'), of_distribution, "{query}: a percentile");
        contract.extend(CONTRACT.iter().filter(|name| **name == row.name));
        for label in &labels {
            if let Some(bound) = label.strip_prefix("upper_bound:") {
                assert!(name.ends_with(".bucket"), "{query}");
                let exists = row.buckets.iter().any(|bucket| format!("{bucket:?}") == bound);
                assert!(exists, "{query}: {name} has no bucket up to {bound}");
            } else {
                let label = label.trim_start_matches('$').split(':').next().expect("a first part");
                let exists = row.labels.contains(&label) || FROM_SCRAPING.contains(&label);
                assert!(exists, "{query}: {name} has no label {label}");
            }
        }
        let bounds = labels.iter().filter(|label| label.starts_with("upper_bound:")).count();
        assert_eq!(bounds, usize::from(name.ends_with(".bucket")), "{query}: one bound a bucket");
    }
    contract
}

#[test]
fn the_datadog_dashboard_queries_existing_metrics() {
    let board = include_str!("../../../../dashboards/datadog/handler-liveness-overview.json");
    let board: Value = serde_json::from_str(board).expect("the dashboard is JSON");
    let group = &board["widgets"][0]["definition"];
    assert_eq!((&group["type"], &group["title"]), (&"group".into(), &"Handler Liveness".into()));
    let queries = queries::texts_of(&board, "query");
    assert!(queries.len() >= 20, "{}", queries.len());
    let contract: BTreeSet<&str> = queries.into_iter().flat_map(check_datadog).collect();
    assert_eq!(contract, CONTRACT.into());
}

#[test]
fn each_datadog_monitor_describes_meaning_condition_and_remedy() {
    let monitors = include_str!("../../../../dashboards/datadog/handler-liveness-monitors.json");
    let monitors: Vec<Value> = serde_json::from_str(monitors).expect("the monitors are JSON");
    assert!(monitors.len() >= 7);
    for monitor in monitors {
        let name = monitor["name"].as_str().expect("a name");
        let message = monitor["message"].as_str().expect("a message");
        assert!(name.starts_with("Handler Liveness: "), "{name}");
        for part in ["**What it shows.**", "**When it fires.**", "**What to do.**"] {
            assert!(message.contains(part), "{name}: {part}");
        }
        let query = monitor["query"].as_str().expect("a query");
        check_datadog(query);
        let threshold = query.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok());
        let critical = monitor["options"]["thresholds"]["critical"].as_f64();
        assert!(threshold.is_some() && threshold == critical, "{name}: two thresholds");
    }
}

const README: &str = include_str!("../../../../dashboards/README.md");

/// The sections of a chapter of the README, by their headings.
fn sections_of(chapter: &str) -> BTreeMap<&'static str, &'static str> {
    let (_, rest) = README.split_once(&format!("\n## {chapter}\n")).expect("the chapter");
    let chapter = rest.split("\n## ").next().expect("a first part");
    let sections = chapter.split("\n### ").skip(usize::from(!chapter.starts_with("### ")));
    let sections: Vec<_> = sections
        .filter_map(|section| section.trim_start_matches("### ").split_once('\n'))
        .collect();
    let found: BTreeMap<_, _> = sections.iter().copied().collect();
    assert_eq!(found.len(), sections.len(), "a heading is there twice");
    found
}

#[test]
fn the_readme_describes_each_panel_and_no_other() {
    let grafana = include_str!("../../../../dashboards/grafana/handler-liveness.json");
    let grafana: Value = serde_json::from_str(grafana).expect("the dashboard is JSON");
    let datadog = include_str!("../../../../dashboards/datadog/handler-liveness-overview.json");
    let datadog: Value = serde_json::from_str(datadog).expect("the dashboard is JSON");
    let title = |value: &Value| value["title"].as_str().map(str::to_owned);
    let panels = grafana["panels"].as_array().expect("panels");
    let shown = panels.iter().filter(|panel| panel["type"] != "row").filter_map(title);
    let widgets = datadog["widgets"][0]["definition"]["widgets"].as_array().expect("widgets");
    // A unit that Grafana adds itself, and Datadog does not.
    let without_unit = |title: String| title.split(" (").next().unwrap_or_default().to_owned();
    let widgets = widgets.iter().filter_map(|widget| title(&widget["definition"]));
    let shown: BTreeSet<String> = shown.chain(widgets.map(without_unit)).collect();
    let described: BTreeSet<String> =
        sections_of("Panels").keys().map(|&title| title.to_owned()).collect();
    assert_eq!(shown, described);
}

#[test]
fn the_datadog_dashboard_has_the_required_widgets() {
    let board = include_str!("../../../../dashboards/datadog/handler-liveness-overview.json");
    for asked in [
        "Deadline headroom",
        "Breaches by dying span",
        "Breaches by entity and action",
        "Epoch tick drift p99",
        "Kill latency p99",
    ] {
        assert!(board.contains(&format!("\"title\": \"{asked}")), "{asked}");
    }
}

#[test]
fn the_readme_describes_each_alert_and_no_other() {
    let alerts: BTreeSet<&str> = queries::alerts().into_iter().collect();
    let described = sections_of("Alerts");
    assert_eq!(alerts, described.keys().copied().collect());
    let monitors = include_str!("../../../../dashboards/datadog/handler-liveness-monitors.json");
    let monitors: Vec<Value> = serde_json::from_str(monitors).expect("the monitors are JSON");
    let mut names: Vec<&str> = monitors.iter().filter_map(|one| one["name"].as_str()).collect();
    for (alert, text) in described {
        for part in ["**Shows**", "**Fires**", "**Do**"] {
            assert!(text.contains(part), "{alert}: {part}");
        }
        let called = text.strip_prefix("Datadog: *").and_then(|text| text.split_once("*."));
        match called {
            Some((called, _)) => {
                let at = names.iter().position(|name| name.contains(called));
                names.swap_remove(at.unwrap_or_else(|| panic!("{alert}: no monitor {called}")));
            }
            None => assert!(text.starts_with("Prometheus only."), "{alert}: where is it?"),
        }
    }
    assert!(names.is_empty(), "the README does not describe {names:?}");
}

/// Of each unit test of the rules, in order: the alert, the minute, and whether it fires.
fn unit_tests() -> Vec<Vec<(&'static str, u32, bool)>> {
    let tests = include_str!("../../../../dashboards/prometheus/rules.test.yml");
    let of_one = |test: &'static str| {
        let questions = test.split("- eval_time: ").skip(1).filter_map(|question| {
            let minute = question.split_once('m').and_then(|(minute, _)| minute.parse().ok())?;
            let alert = question.split_once("alertname: ")?.1.lines().next()?;
            Some((alert, minute, !question.contains("exp_alerts: []")))
        });
        questions.collect()
    };
    tests.split("\n  - name: ").skip(1).map(of_one).collect()
}

#[test]
fn each_alert_is_tested_to_stay_silent_to_fire_and_to_clear() {
    let tests = unit_tests();
    for alert in queries::alerts() {
        let proven = tests.iter().any(|test| {
            let asked = |fires: bool| {
                test.iter().filter(move |(of, _, does)| *of == alert && *does == fires)
            };
            let fires: Vec<u32> = asked(true).map(|(_, minute, _)| *minute).collect();
            let silent: Vec<u32> = asked(false).map(|(_, minute, _)| *minute).collect();
            fires.iter().any(|fires| {
                silent.iter().any(|minute| minute < fires)
                    && silent.iter().any(|minute| minute > fires)
            })
        });
        assert!(proven, "{alert}: silent, then firing, then silent again, in one test");
    }
}
