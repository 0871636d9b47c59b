//! Finds keys that one table of a TOML file has several times.

use std::collections::HashMap;
use std::ops::Range;

use toml_parser::Source;
use toml_parser::parser::{Event, EventKind, RecursionGuard, parse_document};

/// Deepest nesting of brackets that is read: as deep as the TOML parser reads.
const DEPTH_MAX: u32 = 80;

/// Returns `source` with all but the last value of each repeated key blanked out, and the places of
/// the keys that were repeated; `None` if there are none. TOML forbids them, but lenient readers take
/// the last one. Only plain keys are found. All places in the text stay as they were.
#[must_use]
pub fn without_repeated_keys(source: &str) -> Option<(String, Vec<Range<usize>>)> {
    let tokens = Source::new(source).lex().into_vec();
    let mut finder = Finder { source, ..Finder::default() };
    let mut receive = |event: Event| finder.take(event);
    parse_document(&tokens, &mut RecursionGuard::new(&mut receive, DEPTH_MAX), &mut ());
    let Finder { earlier, repeated, .. } = finder;
    if repeated.is_empty() {
        return None;
    }
    let mut text = source.as_bytes().to_vec();
    for blank in earlier {
        for byte in text.get_mut(blank).into_iter().flatten() {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    // Whole keys and values are blanked, so no character is cut.
    String::from_utf8(text).ok().map(|text| (text, repeated))
}

#[derive(Default)]
struct Finder<'s> {
    source: &'s str,
    /// The key and value of each key of the current table.
    seen: HashMap<&'s str, Range<usize>>,
    /// The key whose value follows; `None` inside a header and after a dotted key.
    key: Option<Range<usize>>,
    is_header: bool,
    depth: u32,
    earlier: Vec<Range<usize>>,
    repeated: Vec<Range<usize>>,
}

impl Finder<'_> {
    fn take(&mut self, event: Event) {
        let span = event.span().start()..event.span().end();
        match event.kind() {
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                // Clearing it would take as long as the largest table before.
                self.seen = HashMap::new();
                (self.is_header, self.key) = (true, None);
            }
            EventKind::StdTableClose | EventKind::ArrayTableClose => self.is_header = false,
            EventKind::SimpleKey if self.depth == 0 && !self.is_header => self.key = Some(span),
            // A dotted key names another table.
            EventKind::KeySep if self.depth == 0 => (self.is_header, self.key) = (true, None),
            EventKind::Newline if self.depth == 0 => self.is_header = false,
            EventKind::InlineTableOpen | EventKind::ArrayOpen => self.depth += 1,
            EventKind::InlineTableClose | EventKind::ArrayClose => {
                self.depth = self.depth.saturating_sub(1);
                self.end_value(span.end);
            }
            EventKind::Scalar => self.end_value(span.end),
            _ => {}
        }
    }

    fn end_value(&mut self, end: usize) {
        if self.depth > 0 {
            return;
        }
        let Some(key) = self.key.take() else { return };
        let Some(name) = self.source.get(key.clone()) else { return };
        if let Some(earlier) = self.seen.insert(name, key.start..end) {
            self.earlier.push(earlier);
            self.repeated.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_repeated_key_is_kept_in_its_place() {
        let source = "a = [\n  1,\n]\nb = 1\na = 'é' # x\n[t]\na = { a = 1 }\nb.c = 1\nb.d = 2\na = 2\na=3\n";
        let (text, repeated) = without_repeated_keys(source).expect("two keys are repeated");
        assert_eq!(
            text,
            "     \n    \n \nb = 1\na = 'é' # x\n[t]\n             \nb.c = 1\nb.d = 2\n     \na=3\n"
        );
        let lines: Vec<usize> =
            repeated.iter().map(|key| source[..key.start].lines().count() + 1).collect();
        assert_eq!(lines, [5, 10, 11]);
        assert!(toml::de::DeTable::parse(&text).is_ok());
    }

    #[test]
    fn keys_of_different_tables_are_not_repeated() {
        for source in [
            "a = 1\n[[t]]\na = 1\n[[t]]\na = 1\n",
            "a.b = 1\na.c = 2\n",
            "a = { b = 1, c = { b = 2 } }\n",
            "a = [\n{ b = 1 },\n{ b = 2 },\n]\n",
        ] {
            assert_eq!(without_repeated_keys(source), None, "{source}");
        }
    }
}
