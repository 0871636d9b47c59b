//! `sandglass bench`, as people and scripts see it. Nothing here asserts how fast anything is.

mod binary;

use binary::sandglass;
use serde_json::Value;

#[test]
fn one_figure_is_measured_and_printed_as_json_only() {
    let said = sandglass(&[&"bench", &"--quick", &"--only", &"host_call", &"--json"]).exits(0);
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let figure = &report["host_call"];
    assert_eq!(figure["unit"], "ns");
    let number = |name: &str| figure[name].as_f64().unwrap_or_else(|| panic!("{name}: {figure}"));
    assert!(number("p50") > 0.0 && number("p50") <= number("p99"), "{figure}");
    assert!(number("baseline") > 0.0 && number("ratio") > 0.0, "{figure}");
    assert!(figure["samples"].as_u64() > Some(0), "{figure}");
    assert!(figure["goals"].as_array().is_some_and(|goals| !goals.is_empty()), "{figure}");
    assert!(report["machine"]["cores"].as_u64() > Some(0), "{report}");
    for feature in ["pagemap_scan", "scheduler_slice", "timer_slack"] {
        assert!(report["machine"]["kernel_features"][feature].is_boolean(), "{report}");
    }
    assert_eq!(report["quick"], true);
    assert_eq!(report.as_object().map(|report| report.len()), Some(3), "nothing else: {report}");
    assert!(said.err.contains("host_call"), "it tells what it measures: {}", said.err);
}

#[test]
fn an_openwop_host_is_measured_in_a_process_of_its_own() {
    let said = sandglass(&[&"bench", &"--quick", &"--only", &"openwop_runs", &"--json"]).exits(0);
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let figure = &report["openwop_runs"];
    assert_eq!(figure["unit"], "us");
    // A run of three nodes: its begin with the first, and the end of each with what follows.
    assert_eq!(figure["batches_each"], 4, "{figure}");
    assert!(figure["per_second"].as_f64() > Some(0.0), "{figure}");
    assert!(figure["ratio"].as_f64() > Some(0.0), "{figure}");
}

#[test]
fn people_read_a_table_with_each_goal() {
    let said = sandglass(&[&"bench", &"--quick", &"--only", &"host_call"]).exits(0);
    let said = said.says("host_call").says("baseline").says("goal at most");
    assert!(!said.out.contains('\u{1b}'), "no colour where nobody looks: {:?}", said.out);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    let said = sandglass(&[&"bench", &"--only", &"host_cal"]).exits(2);
    assert!(said.err.contains("did you mean `host_call`?"), "{}", said.err);
    assert_eq!(said.out, "");
}

#[test]
fn help_has_examples_and_exit_codes() {
    sandglass(&[&"bench", &"--help"]).exits(0).says("Examples:").says("Exit code: 0");
}
