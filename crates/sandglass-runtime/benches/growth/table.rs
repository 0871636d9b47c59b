//! The table of costs, which all benchmarks of growth print.

use std::time::{Duration, Instant};

use crate::timing::Quantiles;

/// How often something that takes little is repeated; the median is printed.
const REPEATED: usize = 101;

/// What something costs with each amount of work.
pub(crate) struct Growth {
    what: String,
    costs: Vec<(u64, Duration)>,
}

impl Growth {
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self { what: what.into(), costs: Vec::new() }
    }

    pub(crate) fn add(&mut self, work: u64, cost: Duration) {
        self.costs.push((work, cost));
    }

    /// Prints a row: the cost with each amount of work, and the power by which it grows in the last step.
    pub(crate) fn print(&self) {
        let cells: Vec<String> =
            self.costs.iter().map(|(work, cost)| format!("{work}: {}", short(*cost))).collect();
        let power = match self.costs[..] {
            [.., (less, before), (more, after)] => {
                let grown = after.as_secs_f64() / before.as_secs_f64();
                format!("{:.1}", grown.log10() / (more as f64 / less as f64).log10())
            }
            _ => "-".to_owned(),
        };
        println!("| {} | {} | {power} |", self.what, cells.join(" | "));
    }
}

fn short(cost: Duration) -> String {
    match cost.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.1} us", seconds * 1e6),
    }
}

/// The median time that `each` takes.
pub(crate) async fn repeat<F: Future>(mut each: impl FnMut() -> F) -> Duration {
    let mut all = Vec::with_capacity(REPEATED);
    for _ in 0..REPEATED {
        let begun = Instant::now();
        each().await;
        all.push(begun.elapsed());
    }
    Quantiles::of(all).p50
}
