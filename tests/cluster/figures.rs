//! The figures of a trial, as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// Durations of one kind.
#[derive(Debug, Default)]
pub(crate) struct Sample(Vec<Duration>);

#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// How often each kind of fault happened.
    pub(crate) faults: BTreeMap<String, u32>,
    /// From the beginning of a fault until an entity of its host accepted an action, by the kind of fault;
    /// for faults of the database, from its return.
    pub(crate) takeovers: BTreeMap<String, Sample>,
    /// The longest response for each moved entity in a planned move.
    pub(crate) moves: Sample,
    /// An action that the receiving host owns, without faults.
    pub(crate) local: Sample,
    /// One that it forwards.
    pub(crate) forwarded: Sample,
}

impl Sample {
    pub(crate) fn add(&mut self, durations: impl IntoIterator<Item = Duration>) {
        self.0.extend(durations);
    }

    /// The time that this part of a thousand does not exceed, in milliseconds.
    fn millis(&self, thousandths: usize) -> Value {
        let mut sorted = self.0.clone();
        sorted.sort();
        let nth = (sorted.len() * thousandths).div_ceil(1000).saturating_sub(1);
        sorted.get(nth).map_or(Value::Null, |time| json!(time.as_micros() as f64 / 1000.0))
    }

    pub(crate) fn to_json(&self) -> Value {
        let (p50, p99, most) = (self.millis(500), self.millis(990), self.millis(1000));
        json!({"count": self.0.len(), "p50_ms": p50, "p99_ms": p99, "max_ms": most})
    }
}

impl Figures {
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let takeovers: Map<String, Value> =
            self.takeovers.iter().map(|(kind, sample)| (kind.clone(), sample.to_json())).collect();
        let fields = json!({
            "faults": self.faults,
            "takeovers": takeovers,
            "planned_moves": self.moves.to_json(),
            "local": self.local.to_json(),
            "forwarded": self.forwarded.to_json(),
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

#[test]
fn percentiles_are_of_the_sorted_sample() {
    let mut sample = Sample::default();
    assert_eq!(sample.to_json()["p50_ms"], Value::Null);
    sample.add((1..=200).rev().map(Duration::from_millis));
    let expected = json!({"count": 200, "p50_ms": 100.0, "p99_ms": 198.0, "max_ms": 200.0});
    assert_eq!(sample.to_json(), expected);
}
