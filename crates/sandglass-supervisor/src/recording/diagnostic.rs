//! CBOR as text for people.

use std::fmt::{self, Write as _};

use super::secrets::SeenSecrets;
use crate::capability::log::truncate;

/// The start of a text.
struct Start {
    text: String,
    max: usize,
}

impl fmt::Write for Start {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.max.saturating_sub(self.text.len());
        self.text.push_str(&part[..part.floor_char_boundary(room)]);
        if part.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Formats CBOR in its diagnostic notation, without the secrets. Returns at most `max` bytes, and whether
/// there are more.
pub(super) fn to_diagnostic(cbor: &[u8], seen: &SeenSecrets, max: usize) -> (String, bool) {
    // Secrets are removed from twice the length, so that few of the shown bytes are lost at the cut.
    let mut start = Start { text: String::new(), max: 2 * max };
    let is_whole = write!(start, "{}", minicbor::display(cbor)).is_ok();
    let mut text = seen.redacted(start.text, is_whole);
    let is_cut = !is_whole || text.len() > max;
    truncate(&mut text, max);
    (text, is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_secret_across_a_cut_is_not_shown_in_part() {
        let mut seen = SeenSecrets::default();
        let secret = "hunter22".repeat(40);
        seen.add("KEY", &Secret::new(&secret));
        let mut out = minicbor::Encoder::new(Vec::new());
        out.array(2).and_then(|out| out.str(&secret)?.str(&secret)).expect("to a Vec");
        let cbor = out.into_writer();
        for max in 0..secret.len() {
            let (text, is_cut) = to_diagnostic(&cbor, &seen, max);
            assert!(is_cut && text.len() <= max && !text.contains("hun"), "{max}: {text}");
        }
        assert_eq!(
            to_diagnostic(&cbor, &seen, 1000),
            (r#"["[redacted]", "[redacted]"]"#.to_owned(), false)
        );
    }
}
