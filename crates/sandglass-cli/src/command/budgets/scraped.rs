//! Estimates budgets from the metrics of a running host: from the buckets of its histograms, since
//! its start.

use std::collections::BTreeMap;

use sandglass_insight::budget::{Budget, Budgets, Kind, Quantiles};
use sandglass_telemetry::prometheus::Sample;

/// The suffix of the histogram of durations, after any prefix.
const DURATION: &str = "_handler_duration_seconds_bucket";

/// The end of the line that announces the histogram, also before it has a sample.
const ANNOUNCED: &str = "_handler_duration_seconds histogram";

/// An entity type and an action.
type Pair = (String, String);

/// Upper bounds, and the count up to each. No bound is NaN, and the last is infinite.
type Buckets = Vec<(f64, f64)>;

/// The budgets in `text`; `None` if it has no metrics of handlers.
pub(super) fn budgets(text: &str) -> Option<Budgets> {
    let samples: Vec<Sample<'_>> = text.lines().filter_map(Sample::parse).collect();
    let Some(prefix) = samples.iter().find_map(|sample| sample.name.strip_suffix(DURATION)) else {
        let is_announced =
            |line: &str| line.starts_with("# TYPE ") && line.trim_end().ends_with(ANNOUNCED);
        return text.lines().any(is_announced).then(Budgets::default);
    };
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
        let killed: BTreeMap<_, _> = killed.collect();
        let most = most_ms(&took, budget_ms, killed.values().sum());
        Some(Budget {
            runs: whole(total(&took)),
            budget_ms,
            is_default: false,
            took: quantiles(&took, 1_000.0).at_most(most),
            took_by_itself: used.unwrap_or_default().at_most(most),
            is_estimated: true,
            killed,
            of: Kind { entity_type: pair.0, action: pair.1, integration: String::new() },
        })
    });
    Some(Budgets { budgets: budgets.collect(), uncounted: 0 })
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

/// The count of all buckets.
fn total(buckets: &[(f64, f64)]) -> f64 {
    buckets.last().map_or(0.0, |(_, count)| *count)
}

/// Estimates quantiles as Prometheus does: linearly within a bucket, and the lower bound for the
/// last one. `unit` is the milliseconds in a unit of the bounds.
fn quantiles(buckets: &[(f64, f64)], unit: f64) -> Quantiles {
    let of = |share: f64| whole((quantile(buckets, share) * unit).ceil());
    Quantiles { p50_ms: of(0.5), p99_ms: of(0.99), p999_ms: of(0.999), max_ms: of(1.0) }
}

/// The longest time that a handler can have taken, in milliseconds. If no more handlers than those
/// that were killed are certainly above the budget, it is the budget.
#[expect(clippy::cast_precision_loss, reason = "buckets have no such bounds")]
fn most_ms(took: &[(f64, f64)], budget_ms: u64, kills: u64) -> u64 {
    let within = took.iter().find(|(bound, _)| bound * 1_000.0 >= budget_ms as f64);
    let above = total(took) - within.map_or(0.0, |(_, count)| *count);
    if whole(above) <= kills { budget_ms } else { u64::MAX }
}

fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let rank = total(buckets) * share;
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

/// Converts a number of foreign origin.
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
    fn metrics_give_the_figures_of_a_journal() {
        let found = budgets(PAGE).expect("it has handlers");
        let [one] = &found.budgets[..] else { panic!("{found:?}") };
        assert_eq!((one.budget_ms, one.runs, one.kills()), (20_000, 1_000, 2));
        assert_eq!(one.killed.keys().collect::<Vec<_>>(), ["guest"]);
        let took = one.took;
        assert_eq!((took.p50_ms, took.p99_ms, took.max_ms), (556, 5_000, 15_000));
        assert_eq!(one.took_by_itself.p99_ms, 9_900);
    }

    #[test]
    fn no_estimate_is_above_a_budget_that_kills() {
        let short = PAGE.replace(
            "remaining_ms{entity_type=\"S\",action=\"Go\"} 20000",
            "remaining_ms{entity_type=\"S\",action=\"Go\"} 12000",
        );
        let found = budgets(&short).expect("it has handlers");
        let took = found.budgets[0].took;
        assert!(found.budgets[0].is_estimated);
        assert_eq!((took.p99_ms, took.p999_ms, took.max_ms), (5_000, 12_000, 12_000));
        // Some had more time than that, as a retry may.
        let few = short.replace("dying_span=\"guest\"} 2", "dying_span=\"guest\"} 1");
        let took = budgets(&few).expect("it has handlers").budgets[0].took;
        assert_eq!(took.max_ms, 15_000);
    }

    #[test]
    fn an_announced_histogram_without_samples_has_no_budgets() {
        let announced = "# TYPE x_handler_duration_seconds histogram\n";
        assert_eq!(budgets(announced), Some(Budgets::default()));
    }

    #[test]
    fn a_page_without_metrics_of_handlers_is_rejected() {
        assert_eq!(budgets(""), None);
        assert_eq!(budgets("up 1\n<html>"), None);
        let no_budget = PAGE.replace("remaining_ms", "other");
        assert_eq!(budgets(&no_budget).map(|found| found.budgets), Some(Vec::new()));
        let odd = PAGE.replace("le=\"1\"", "le=\"NaN\"").replace(" 998", " NaN");
        assert!(budgets(&odd).is_some());
    }
}
