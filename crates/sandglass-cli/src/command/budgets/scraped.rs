//! Budgets as the metrics of a running host show them: by the bounds of its histograms, and
//! since its start.

use std::collections::BTreeMap;

use sandglass_liveness::budget::{Budget, Budgets, Kind, Quantiles};

use crate::exposition::{Sample, sample};

/// What tells the histograms of durations from others, whatever prefix an embedder chose.
const DURATION: &str = "_handler_duration_seconds_bucket";

/// An entity type and an action.
type Pair = (String, String);

/// Upper bounds, none of them a NaN and the last an infinite one, and how many were counted up
/// to each.
type Buckets = Vec<(f64, f64)>;

/// The budgets in `text`; none where it has no metrics of handlers.
pub(super) fn budgets(text: &str) -> Option<Budgets> {
    let samples: Vec<Sample<'_>> = text.lines().filter_map(sample).collect();
    let prefix = samples.iter().find_map(|sample| sample.name.strip_suffix(DURATION))?;
    let name = |rest: &str| format!("{prefix}{rest}");
    let (took, used) = (name(DURATION), name("_handler_budget_used_ratio_bucket"));
    let (took, used) = (buckets(&samples, &took), buckets(&samples, &used));
    let left = name("_handler_deadline_remaining_ms");
    let killed = name("_handler_deadline_exceeded_total");
    let budgets = took.into_iter().filter_map(|(pair, took)| {
        let of_pair = |wanted: &str| {
            let (wanted, pair) = (wanted.to_owned(), pair.clone());
            let fits = move |sample: &&Sample<'_>| {
                sample.name == wanted && pair_of(sample).as_ref() == Some(&pair)
            };
            samples.iter().filter(fits)
        };
        let budget_ms = whole(of_pair(&left).next()?.value);
        let used = used.get(&pair).map(|used| quantiles(used, budget_ms as f64));
        let killed = of_pair(&killed).filter(|sample| sample.value >= 1.0).map(|sample| {
            let span = sample.labels.get("dying_span").cloned().unwrap_or_default();
            (span, whole(sample.value))
        });
        Some(Budget {
            runs: whole(counted(&took)),
            budget_ms,
            is_default: false,
            took: quantiles(&took, 1_000.0),
            took_by_itself: used.unwrap_or_default(),
            killed: killed.collect(),
            of: Kind { entity_type: pair.0, action: pair.1, integration: String::new() },
        })
    });
    Some(Budgets { budgets: budgets.collect(), untold: 0 })
}

fn pair_of(sample: &Sample<'_>) -> Option<Pair> {
    let label = |name| sample.labels.get(name).cloned();
    label("entity_type").zip(label("action"))
}

fn buckets(samples: &[Sample<'_>], name: &str) -> BTreeMap<Pair, Buckets> {
    let mut found: BTreeMap<Pair, Buckets> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.name == name) {
        let bound = sample.labels.get("le").and_then(|bound| bound.parse::<f64>().ok());
        let bound = bound.filter(|bound| !bound.is_nan() && *bound >= 0.0);
        if let (Some(pair), Some(bound)) = (pair_of(sample), bound) {
            found.entry(pair).or_default().push((bound, sample.value));
        }
    }
    for buckets in found.values_mut() {
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    }
    found
}

/// How many there are in all.
fn counted(buckets: &[(f64, f64)]) -> f64 {
    buckets.last().map_or(0.0, |(_, count)| *count)
}

/// As Prometheus estimates them: evenly within a bucket, and of the last one its lower bound.
/// `unit` says how many milliseconds one is.
fn quantiles(buckets: &[(f64, f64)], unit: f64) -> Quantiles {
    let of = |share: f64| whole((quantile(buckets, share) * unit).ceil());
    Quantiles { p50_ms: of(0.5), p99_ms: of(0.99), p999_ms: of(0.999), max_ms: of(1.0) }
}

fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let rank = counted(buckets) * share;
    let (mut below, mut so_far) = (0.0, 0.0);
    for (bound, count) in buckets.iter().copied() {
        if count >= rank && count > so_far {
            let within = (rank - so_far) / (count - so_far);
            return if bound.is_finite() { below + (bound - below) * within } else { below };
        }
        (below, so_far) = (bound, count);
    }
    if below.is_finite() { below } else { 0.0 }
}

/// Of a number that somebody else wrote.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE x_handler_duration_seconds histogram\n\
        x_handler_duration_seconds_bucket{entity_type=\"S\",action=\"Go\",le=\"1\"} 900\n\
        x_handler_duration_seconds_bucket{entity_type=\"S\",action=\"Go\",le=\"5\"} 990\n\
        x_handler_duration_seconds_bucket{entity_type=\"S\",action=\"Go\",le=\"15\"} 998\n\
        x_handler_duration_seconds_bucket{entity_type=\"S\",action=\"Go\",le=\"+Inf\"} 1000\n\
        x_handler_budget_used_ratio_bucket{entity_type=\"S\",action=\"Go\",le=\"0.5\"} 998\n\
        x_handler_budget_used_ratio_bucket{entity_type=\"S\",action=\"Go\",le=\"+Inf\"} 998\n\
        x_handler_deadline_remaining_ms{entity_type=\"S\",action=\"Go\"} 20000\n\
        x_handler_deadline_exceeded_total{entity_type=\"S\",action=\"Go\",dying_span=\"guest\"} 2\n\
        x_handler_deadline_exceeded_total{entity_type=\"S\",action=\"Go\",dying_span=\"ask\"} 0\n";

    #[test]
    fn a_page_of_metrics_tells_what_a_journal_would() {
        let found = budgets(PAGE).expect("it has handlers");
        let [one] = &found.budgets[..] else { panic!("{found:?}") };
        assert_eq!((one.budget_ms, one.runs, one.kills()), (20_000, 1_000, 2));
        assert_eq!(one.killed.keys().collect::<Vec<_>>(), ["guest"]);
        let took = one.took;
        assert_eq!((took.p50_ms, took.p99_ms, took.max_ms), (556, 5_000, 15_000));
        assert_eq!(one.took_by_itself.p99_ms, 9_900);
    }

    #[test]
    fn what_is_no_such_page_tells_nothing() {
        assert_eq!(budgets(""), None);
        assert_eq!(budgets("up 1\n<html>"), None);
        let no_budget = PAGE.replace("remaining_ms", "other");
        assert_eq!(budgets(&no_budget).map(|found| found.budgets), Some(Vec::new()));
        let odd = PAGE.replace("le=\"1\"", "le=\"NaN\"").replace(" 998", " NaN");
        assert!(budgets(&odd).is_some());
    }
}
