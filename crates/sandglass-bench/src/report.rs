//! All figures of one benchmark: as JSON for scripts, and as lines for people.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::figure::Figure;
use crate::key::Key;
use crate::machine::Machine;

/// The figures, and the machine that they were measured on.
#[derive(Clone, Debug)]
pub struct Report {
    /// The figures, in the order in which they were measured.
    pub figures: Vec<(Key, Result<Figure, NotMeasured>)>,
    /// The machine that they were measured on.
    pub machine: Machine,
    /// Whether only a small number of measurements was made of each.
    pub quick: bool,
}

/// A figure that could not be measured, because this machine has too little of a resource, or
/// because the host did not behave as the measurement expects.
#[derive(Clone, Debug, Serialize, thiserror::Error)]
#[error("could not be measured: {why}")]
pub struct NotMeasured {
    /// What went wrong.
    #[serde(rename = "error")]
    pub why: String,
}

impl Report {
    /// Whether every figure could be measured.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.figures.iter().all(|(_, figure)| figure.is_ok())
    }
}

/// One object: each figure, or an object with its `error`, under its key; `machine`; and `quick`.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.figures.len() + 2))?;
        for (key, figure) in &self.figures {
            match figure {
                Ok(figure) => map.serialize_entry(key.name(), figure)?,
                Err(error) => map.serialize_entry(key.name(), error)?,
            }
        }
        map.serialize_entry("machine", &self.machine)?;
        map.serialize_entry("quick", &self.quick)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Unit;
    use crate::timing::Samples;
    use sandglass_host::KernelFeatures;

    #[test]
    fn a_figure_that_could_not_be_measured_loses_no_other() {
        let mut samples = Samples::default();
        samples.push(7.0);
        let measured = Figure::of(&samples, Unit::Nanoseconds);
        let failed = NotMeasured { why: "no room".to_owned() };
        let figures = vec![(Key::Leaks, Err(failed)), (Key::HostCall, Ok(measured))];
        let kernel_features = KernelFeatures::NONE;
        let machine = Machine { cores: 1, kernel: "1".into(), wasmtime: "1", kernel_features };
        let report = Report { figures, machine, quick: true };
        assert!(!report.is_complete());
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["leaks"], serde_json::json!({ "error": "no room" }));
        assert_eq!(json["host_call"]["p50"], 7.0);
        let lines = crate::lines(&report, |_, verdict| verdict.to_owned()).join("\n");
        assert!(lines.contains("could not be measured: no room"), "{lines}");
        assert!(lines.contains("host_call"), "{lines}");
    }
}
