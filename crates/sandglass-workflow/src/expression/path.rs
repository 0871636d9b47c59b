//! Paths into the scope of conditions and expressions: `output.items[0].name`.

use serde_json::Value;

use sandglass_source::did_you_mean;

use crate::problem::quoted;

/// The first names of paths: the members of the scope.
pub const ROOTS: &[&str] = &["status", "output", "outputs", "variables", "inputs"];

/// The place of a value in the scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A field of an object.
    Key(String),
    /// An item of a list or, by the same digits, a field of an object.
    Index(usize, String),
}

impl Path {
    /// Parses the path that `text` begins with, and returns its length in bytes, too.
    ///
    /// # Errors
    /// The path is invalid, for this reason.
    pub(crate) fn parse(text: &str) -> Result<(Self, usize), String> {
        let mut rest = Rest { text, next: 0 };
        let root = rest.word();
        if !ROOTS.contains(&root) {
            let hint = did_you_mean(root, ROOTS.iter().copied()).text();
            return Err(format!("no path begins with {}; {hint}", quoted(root)));
        }
        let mut steps = vec![Step::Key(root.to_owned())];
        loop {
            if rest.take('.') {
                let word = rest.word();
                if word.is_empty() {
                    return Err("a name is missing after a `.`".to_owned());
                }
                steps.push(Step::named(word));
            } else if rest.take('[') {
                steps.push(rest.bracketed()?);
            } else {
                return Ok((Self { steps }, rest.next));
            }
        }
    }

    /// Parses `text`, which must be a path as a whole.
    ///
    /// # Errors
    /// The path is invalid, for this reason.
    pub(crate) fn whole(text: &str) -> Result<Self, String> {
        let (path, end) = Self::parse(text)?;
        match &text[end..] {
            "" => Ok(path),
            rest => Err(format!("{} is no part of a path", quoted(rest))),
        }
    }

    /// The value at the path, or else null.
    pub(crate) fn value<'s>(&self, scope: &'s Value) -> &'s Value {
        self.find(scope).unwrap_or(&Value::Null)
    }

    fn find<'s>(&self, scope: &'s Value) -> Option<&'s Value> {
        self.steps.iter().try_fold(scope, |value, step| match (value, step) {
            (Value::Array(items), Step::Index(index, _)) => items.get(*index),
            (Value::Object(fields), Step::Key(key) | Step::Index(_, key)) => fields.get(key),
            _ => None,
        })
    }
}

impl Step {
    fn named(word: &str) -> Self {
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        match word.parse() {
            Ok(index) if digits => Self::Index(index, word.to_owned()),
            _ => Self::Key(word.to_owned()),
        }
    }
}

struct Rest<'t> {
    text: &'t str,
    next: usize,
}

impl<'t> Rest<'t> {
    fn take(&mut self, c: char) -> bool {
        let found = self.text[self.next..].starts_with(c);
        self.next += if found { c.len_utf8() } else { 0 };
        found
    }

    fn word(&mut self) -> &'t str {
        let rest = &self.text[self.next..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        self.next += end;
        &rest[..end]
    }

    /// Parses digits or a quoted name, and the closing bracket. The opening bracket was taken before.
    fn bracketed(&mut self) -> Result<Step, String> {
        let step = match self.text[self.next..].chars().next() {
            Some(quote @ ('"' | '\'')) => {
                self.next += 1;
                let rest = &self.text[self.next..];
                let Some(end) = rest.find(quote) else {
                    return Err(format!("the name isn't closed; add a `{quote}`"));
                };
                self.next += end + 1;
                Step::Key(rest[..end].to_owned())
            }
            _ => match Step::named(self.word()) {
                index @ Step::Index(..) => index,
                Step::Key(_) => {
                    return Err("brackets must contain a number or a quoted name".to_owned());
                }
            },
        };
        if self.take(']') { Ok(step) } else { Err("the bracket isn't closed; add a `]`".into()) }
    }
}

/// Whether names in paths may contain it; other names are quoted in brackets.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '$')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_existing_values_only() {
        let scope = json!({"output": {"a": [{"b": 1}, 2], "7": "seven", "x y": true, "é-$": 3}});
        for (path, found) in [
            ("output.a[0].b", Some(json!(1))),
            ("output.a.1", Some(json!(2))),
            ("output.7", Some(json!("seven"))),
            ("output['x y']", Some(json!(true))),
            ("output[\"é-$\"]", Some(json!(3))),
            ("output.é-$", Some(json!(3))),
            ("output.a[2]", None),
            ("output.a.b", None),
            ("output.a[99999999999999999999]", None),
            ("output.none.none", None),
            ("variables.x", None),
        ] {
            let parsed = match Path::whole(path) {
                Ok(parsed) => parsed,
                Err(_) if found.is_none() => continue,
                Err(why) => panic!("{path}: {why}"),
            };
            assert_eq!(parsed.find(&scope), found.as_ref(), "{path}");
        }
    }

    #[test]
    fn invalid_paths_are_reported() {
        for (path, why) in [
            ("", "begins with"),
            ("outptu.a", "did you mean `output`?"),
            ("output.", "missing after a `.`"),
            ("output..a", "missing after a `.`"),
            ("output[a]", "a number or a quoted name"),
            ("output['a", "isn't closed"),
            ("output[1", "isn't closed"),
            ("output a", "no part of a path"),
            ("output*", "no part of a path"),
        ] {
            let error = Path::whole(path).expect_err(path);
            assert!(error.contains(why), "{path}: {error}");
        }
    }
}
