//! Messages of rejections, which may quote text of a module's author.

use sandglass_model::text::is_unprintable;
use sandglass_model::{Rejection, RejectionKind};
use sandglass_source::printable;

/// Rejects a module or a dispatch. What would drive a terminal is escaped in `message`, apart from
/// line breaks.
pub fn rejection(kind: RejectionKind, message: impl Into<String>) -> Rejection {
    let mut message = message.into();
    if message.contains(|c| c != '\n' && is_unprintable(c)) {
        let lines: Vec<_> = message.split('\n').map(printable).collect();
        message = lines.join("\n");
    }
    Rejection { kind, message }
}

/// Returns an error of several lines as one line.
#[must_use]
pub fn in_a_line(error: &str) -> String {
    let lines: Vec<&str> = error.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    printable(&lines.join("; ")).into_owned()
}
