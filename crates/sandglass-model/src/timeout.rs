//! How a timeout is described to a guest, an entity and an operator: one text, derived from the
//! typed outcome and never parsed.

/// Describes a handler that was killed at its deadline, or a host call that was ended at its limit,
/// after `limit_ms` milliseconds. The first line states the limit in seconds, rounded up.
#[must_use]
pub fn timeout_text(limit_ms: u64) -> String {
    let seconds = limit_ms.div_ceil(1_000);
    format!(
        "TIMEOUT after {seconds}s (wall-clock kill, process killed)\nThe limit was {limit_ms} ms. \
         Diagnose the environment instead of retrying the same thing: look for what hangs (a lock, \
         a prompt, a network that does not answer). The same call would take as long again."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_whole_seconds_and_the_second_the_exact_limit() {
        for (limit_ms, seconds) in [(300_000, 300), (1_001, 2), (20, 1), (0, 0)] {
            let text = timeout_text(limit_ms);
            let first = format!("TIMEOUT after {seconds}s (wall-clock kill, process killed)\n");
            assert!(text.starts_with(&first), "{text}");
            assert!(text.contains(&format!("The limit was {limit_ms} ms.")), "{text}");
        }
    }
}
