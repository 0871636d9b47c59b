//! Reads JSON files that people write, within limits, and finds the places that JSON pointers point
//! to.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_source::json::{self, Bounds, DuplicateKeys, MAX_VALUES, Violation, ViolationKind};
use serde_json::Value;

use crate::fields::Fields;
use crate::problem::{Place, Problem, Problems, push_key, quoted};

/// Deepest nesting of a definition or a manifest: several times as deep as its schema, which leaves room
/// for configurations, and far less than the stack of a thread allows.
pub const DEPTH_MAX: usize = 64;

/// Longest key of an object in a definition or a manifest, in bytes: names are far shorter, and the
/// pointer of a problem contains each key on its path.
pub const KEY_MAX_BYTES: usize = 1_024;

const BOUNDS: Bounds = Bounds {
    max_values: MAX_VALUES,
    max_depth: DEPTH_MAX,
    max_key_bytes: KEY_MAX_BYTES,
    duplicate_keys: DuplicateKeys::Rejected,
};

/// Reads the JSON object `text`, which messages call `label`, through its fields. It may have
/// `max_bytes`, and no other keys than those that `read_fields` looks up.
pub(crate) fn parse<T>(
    text: &str,
    max_bytes: usize,
    label: &'static str,
    read_fields: impl FnOnce(&Fields<'_>, &Value) -> Option<T>,
) -> Result<T, Vec<Problem>> {
    let value = read(text, max_bytes)?;
    let out = Problems::default();
    let found = Fields::closed(&value, "", label, &out, |fields| read_fields(fields, &value));
    out.check(found.flatten()).map_err(|problems| placed(problems, text))
}

/// Reads `text`, which may have `max_bytes`.
fn read(text: &str, max_bytes: usize) -> Result<Value, Vec<Problem>> {
    if text.len() > max_bytes {
        let what = format!(
            "it has {} bytes, and {max_bytes} are allowed; split it into several",
            text.len()
        );
        return Err(vec![Problem::new("", what)]);
    }
    json::read_within(text, BOUNDS).map_err(|error| match error {
        json::Error::Violations(found) => placed(found.into_iter().map(problem).collect(), text),
        json::Error::Invalid(error) => vec![not_valid(&error, text)],
        error => vec![Problem::new("", error.to_string())],
    })
}

fn problem(Violation { pointer, kind }: Violation) -> Problem {
    let what = match kind {
        ViolationKind::DuplicateKey(key) => {
            format!("the key {} is duplicated; keep one of them", quoted(&key))
        }
        ViolationKind::LongKey => {
            format!("it has a key of more than {KEY_MAX_BYTES} bytes; shorten it")
        }
        ViolationKind::TooDeep => format!("it is nested more than {DEPTH_MAX} deep; flatten it"),
    };
    Problem::new(pointer, what)
}

/// The problems with the places that their pointers have in `text`, which is JSON.
fn placed(mut problems: Vec<Problem>, text: &str) -> Vec<Problem> {
    let wanted: BTreeSet<String> = problems.iter().map(|one| one.path.clone()).collect();
    let mut offsets = BTreeMap::new();
    walk(text, |pointer, offset| {
        if wanted.contains(pointer) {
            offsets.entry(pointer.to_owned()).or_insert(offset);
        }
        offsets.len() < wanted.len()
    });
    let lines = Lines::of(text);
    for problem in &mut problems {
        let offset = offsets.get(&problem.path);
        problem.place = problem.place.or_else(|| offset.map(|offset| lines.place(*offset)));
    }
    problems
}

fn not_valid(error: &serde_json::Error, text: &str) -> Problem {
    let message = error.to_string();
    // The parser counts columns in bytes.
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = message.strip_suffix(&place).unwrap_or(&message);
    let mut problem = Problem::new("", format!("it is not valid JSON: {what}; fix it"));
    problem.place = error.line().checked_sub(1).and_then(|line| {
        let line_text = text.split('\n').nth(line)?;
        let before = error.column().saturating_sub(1);
        let characters = line_text.char_indices().take_while(|(at, _)| *at < before).count();
        Some(Place { line: line + 1, column: characters + 1 })
    });
    problem
}

/// A list or an object that contains the current value.
struct Level {
    /// The length of the pointer to it.
    pointer: usize,
    inside: Inside,
}

enum Inside {
    List { index: usize },
    Object,
}

/// Visits the values of valid JSON until `on` returns false. `on` gets the pointer to the value, and
/// where it begins in the text, in bytes, which the parser does not report.
fn walk(text: &str, mut on: impl FnMut(&str, usize) -> bool) {
    let bytes = text.as_bytes();
    let mut pointer = String::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut key_is_next = false;
    let mut next = 0;
    while let Some(byte) = bytes.get(next) {
        let start = next;
        next += 1;
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b':' => {}
            b',' => match levels.last_mut() {
                Some(Level { pointer: own, inside: Inside::List { index } }) => {
                    *index += 1;
                    pointer.truncate(*own);
                    push_key(&mut pointer, &index.to_string());
                }
                _ => key_is_next = true,
            },
            b']' | b'}' => {
                pointer.truncate(levels.pop().map_or(0, |level| level.pointer));
                key_is_next = false;
            }
            b'"' if key_is_next => {
                next = string_end(bytes, start);
                let Some(level) = levels.last() else { return };
                pointer.truncate(level.pointer);
                let Ok(key) = serde_json::from_str::<String>(&text[start..next]) else { return };
                push_key(&mut pointer, &key);
                key_is_next = false;
            }
            value => {
                if !on(&pointer, start) {
                    return;
                }
                let own = pointer.len();
                let inside = match value {
                    b'[' => Inside::List { index: 0 },
                    b'{' => Inside::Object,
                    b'"' => {
                        next = string_end(bytes, start);
                        continue;
                    }
                    _ => {
                        let rest = &bytes[start..];
                        let ends = |byte: &u8| b",]} \t\n\r".contains(byte);
                        next = start + rest.iter().position(ends).unwrap_or(rest.len());
                        continue;
                    }
                };
                key_is_next = matches!(inside, Inside::Object);
                if !key_is_next {
                    pointer.push_str("/0");
                }
                levels.push(Level { pointer: own, inside });
            }
        }
    }
}

/// The position after the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut next = start + 1;
    while let Some(byte) = bytes.get(next) {
        match byte {
            b'\\' => next += 2,
            b'"' => return next + 1,
            _ => next += 1,
        }
    }
    bytes.len()
}

/// Where the lines of a text begin.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    fn place(&self, offset: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let before = &self.text[self.starts[line - 1]..offset];
        Place { line, column: before.chars().count() + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(text: &str) -> Vec<(String, usize)> {
        let mut seen = Vec::new();
        walk(text, |pointer, offset| {
            seen.push((pointer.to_owned(), offset));
            true
        });
        seen
    }

    #[test]
    fn each_value_is_found_under_its_pointer() {
        let text = "{ \"a\": [1, {\"b/c\":\"x,]}\\\"\"}, [] ,true],\n\"d~\":{}, \"e\":-1.5e3}";
        let value: Value = serde_json::from_str(text).expect("JSON");
        let found = pointers(text);
        let names: Vec<&str> = found.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(names, ["", "/a", "/a/0", "/a/1", "/a/1/b~1c", "/a/2", "/a/3", "/d~0", "/e"]);
        for (pointer, offset) in found {
            let here = serde_json::Deserializer::from_str(&text[offset..]).into_iter::<Value>();
            let here = { here }.next().expect("a value").expect("JSON");
            assert_eq!(value.pointer(&pointer), Some(&here), "{pointer}");
        }
    }

    #[test]
    fn problems_get_the_places_that_they_point_to() {
        let text = "{\n  \"é\": 1, \"a\": [0,\n 1]\n}";
        let paths = ["", "/a", "/a/1", "/none"];
        let problems = paths.map(|path| Problem::new(path, "wrong")).to_vec();
        let places: Vec<_> = placed(problems, text).into_iter().map(|one| one.place).collect();
        let place = |line, column| Some(Place { line, column });
        assert_eq!(places, [place(1, 1), place(2, 16), place(3, 2), None]);
    }

    #[test]
    fn invalid_text_is_refused_with_the_reason() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let long_key = format!("{{\"{}\":1}}", "k".repeat(KEY_MAX_BYTES + 1));
        for (text, path, place, what) in [
            (String::new(), "", None, "it is empty"),
            ("{\n \"a\" 1}".into(), "", Some((2, 6)), "not valid JSON"),
            ("[1,{\"a\":1,\"a\":2}]".into(), "/1", Some((1, 4)), "`a` is duplicated"),
            (deep(DEPTH_MAX + 1), &"/0".repeat(DEPTH_MAX), Some((1, 65)), "nested more than 64"),
            (long_key, "", Some((1, 1)), "a key of more than 1024 bytes"),
            ("[1,2,3,4,5]".repeat(200), "", None, "2200 bytes, and 2048 are allowed"),
            ("{\"$serde_json::private::Number\":\"1\"}".into(), "", None, "reserved key"),
        ] {
            let problems = read(&text, 2_048).expect_err(&text);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(problems[0].path, path, "{problems:?}");
            if let Some((line, column)) = place {
                assert_eq!(problems[0].place, Some(Place { line, column }), "{problems:?}");
            }
            assert!(problems[0].what.contains(what), "{problems:?}");
        }
        assert!(read(&deep(DEPTH_MAX), 2_048).is_ok());
    }
}
