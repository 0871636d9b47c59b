//! The pages about error codes (`docs/errors/CODE.md`), and their text without markup.

/// A page about a code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The code, as reports and responses spell it.
    pub(crate) code: &'static str,
    /// The page in Markdown, starting with `# code: title`.
    markdown: &'static str,
}

macro_rules! pages {
    ($($code:literal,)*) => {
        /// All pages, in the order of the index.
        pub(crate) const PAGES: &[Page] = &[$(Page {
            code: $code,
            markdown: include_str!(concat!("../../../docs/errors/", $code, ".md")),
        },)*];
    };
}

pages! {
    "rejected",
    "failed",
    "trapped",
    "timed_out",
    "limit",
    "cancelled",
    "interrupted",
    "unknown_module",
    "invalid_module",
    "unsupported_module",
    "module_hash_mismatch",
    "module_abi_mismatch",
    "module_too_large",
    "missing_import",
    "missing_grant",
    "missing_export",
    "wrong_signature",
    "unsupported_abi_version",
    "invalid_pack",
    "needs_too_much",
    "compile_limit",
    "invalid_dispatch",
    "unresolved_template",
    "host_unavailable",
    "guest_failure",
    "typed_failure",
    "absent_result",
    "multiple_writes",
    "multiple_sources",
    "result_out_of_bounds",
    "result_too_large",
    "invalid_utf8",
    "invalid_json",
    "invalid_shape",
    "denied",
    "no_action",
    "action_not_taken",
    "unreachable",
    "stack_overflow",
    "memory_out_of_bounds",
    "table_out_of_bounds",
    "bad_indirect_call",
    "arithmetic",
    "uncaught_exception",
    "exit",
    "bad_host_call",
    "other",
    "handler_deadline_exceeded",
    "wasm-memory",
    "wasm-table",
    "wasm-fuel",
    "host-memory",
    "ask",
    "signal",
    "daemon",
    "spawn",
}

/// Finds the page of a code, in any case, with `-` or `_`.
pub(crate) fn named(code: &str) -> Option<&'static Page> {
    let normalize = |code: &str| code.trim().to_ascii_lowercase().replace('-', "_");
    let wanted = normalize(code);
    let own = PAGES.iter().find(|page| normalize(page.code) == wanted);
    own.or_else(|| PAGES.iter().find(|page| page.lists(&wanted)))
}

/// Pages about several codes, which each of them lists.
const FAMILIES: [&str; 4] = ["ask", "signal", "daemon", "spawn"];

/// The command that explains `code`.
pub(crate) fn command(code: &str) -> String {
    format!("sandglass explain {code}")
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Heading,
    Text,
}

impl Page {
    /// Its title, without the code.
    pub(crate) fn title(&self) -> &'static str {
        let first = self.markdown.lines().next().unwrap_or_default();
        first.split_once(": ").map_or(first, |(_, title)| title)
    }

    /// Whether it is a page about several codes, and `code` is one of them.
    fn lists(&self, code: &str) -> bool {
        let quoted = format!("`{code}`");
        let is_item = |line: &&str| line.starts_with("- `") || line.starts_with("  `");
        let mut items = self.markdown.lines().filter(is_item);
        FAMILIES.contains(&self.code) && items.any(|item| item.contains(&quoted))
    }

    /// The lines below the title, without markup.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (Line, String)> {
        let mut is_code = false;
        self.markdown.lines().skip(1).filter_map(move |line| {
            if line.starts_with("```") {
                is_code = !is_code;
                return None;
            }
            Some(match (is_code, line.strip_prefix("## ")) {
                (true, _) => (Line::Text, format!("    {line}")),
                (false, Some(heading)) => (Line::Heading, heading.to_owned()),
                (false, None) => (Line::Text, without_markup(line)),
            })
        })
    }

    /// All lines as one text.
    pub(crate) fn plain(&self) -> String {
        self.lines().map(|(_, line)| line + "\n").collect()
    }
}

/// Removes emphasis from a line, and replaces links by their names.
fn without_markup(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        let parts = link.split_once("](").and_then(|(name, target)| {
            let (target, behind) = target.split_once(')')?;
            Some((name, target, behind))
        });
        let Some((name, target, behind)) = parts else {
            plain.push('[');
            rest = link;
            continue;
        };
        plain += name;
        // The name of another error page is enough to find it.
        if let Some(path) = target.strip_prefix("../") {
            plain += &format!(" (docs/{path})");
        }
        rest = behind;
    }
    plain += rest;
    plain.replace("**", "")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sandglass_model::signature::TIMED_OUT;
    use sandglass_model::{
        FailureKind, LimitKind, OutcomeKind, RejectionKind, SpawnObstacle, TrapKind,
    };

    use super::*;

    const INDEX: &str = include_str!("../../../docs/errors/README.md");

    /// Every code that a report can carry.
    fn codes() -> BTreeSet<&'static str> {
        let outcomes = OutcomeKind::ALL.iter().filter(|kind| **kind != OutcomeKind::Completed);
        let mut codes: BTreeSet<_> = outcomes.map(|kind| kind.as_str()).collect();
        codes.extend(RejectionKind::ALL.iter().map(|kind| kind.as_str()));
        codes.extend(FailureKind::ALL.iter().map(|kind| kind.as_str()));
        codes.extend(TrapKind::ALL.iter().map(|kind| kind.as_str()));
        codes.extend(LimitKind::ALL.iter().map(|kind| kind.as_str()));
        codes.extend(sandglass_model::AskError::KINDS);
        codes.extend(sandglass_model::SignalError::KINDS);
        codes.extend(SpawnObstacle::ALL.iter().map(|reason| reason.as_str()));
        codes.insert(TIMED_OUT);
        codes
    }

    #[test]
    fn every_code_has_a_page_and_stands_in_the_index() {
        for code in codes() {
            assert!(named(code).is_some(), "no docs/errors/{code}.md in `pages!`");
        }
        for page in PAGES {
            let line = format!("- [`{0}`]({0}.md): {1}", page.code, page.title());
            assert!(INDEX.lines().any(|one| one == line), "docs/errors/README.md lacks\n{line}");
        }
        let listed = INDEX.lines().filter(|line| line.starts_with("- [`")).count();
        assert_eq!(listed, PAGES.len(), "the index has one line for each page");
    }

    #[test]
    fn every_file_is_a_page() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let files = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|file| file.expect("a file").file_name().into_string().expect("a name in UTF-8"));
        let files: BTreeSet<String> = files.filter(|name| name.ends_with(".md")).collect();
        let pages = PAGES.iter().map(|page| format!("{}.md", page.code));
        let expected: BTreeSet<String> = pages.chain(["README.md".to_owned()]).collect();
        assert_eq!(files, expected);
    }

    #[test]
    fn a_page_has_all_its_parts_and_valid_links() {
        for page in PAGES {
            let Page { code, markdown } = page;
            assert!(markdown.starts_with(&format!("# {code}: ")), "{code}");
            for part in ["## Example", "## Why", "## What to do", "## See also"] {
                assert!(markdown.contains(&format!("\n{part}\n")), "{code}: no `{part}`");
            }
            let lines = markdown.lines().count();
            assert!((14..=48).contains(&lines), "{code} has {lines} lines");
            for (at, _) in markdown.match_indices("](") {
                let target = markdown[at + 2..].split(')').next().expect("it ends");
                let file = target.split('#').next().expect("a file");
                let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
                let path = folder.join("../../docs/errors").join(file);
                assert!(path.exists(), "{code}: {target} does not exist");
            }
        }
    }

    #[test]
    fn text_for_a_terminal_has_no_markup() {
        for page in PAGES {
            let text = page.plain();
            for markup in ["```", "](", "**", "\n#"] {
                assert!(!text.contains(markup), "{}: `{markup}` in\n{text}", page.code);
            }
        }
        let shown = without_markup("a **b** [`c`](c.md), [d](../d.md#e) [1] x[0]");
        assert_eq!(shown, "a b `c`, d (docs/d.md#e) [1] x[0]");
    }

    #[test]
    fn a_code_is_found_in_any_spelling() {
        for (spelled, code) in [
            ("wasm_memory", "wasm-memory"),
            ("Missing-Import", "missing_import"),
            (" trapped", "trapped"),
            ("ask_cycle", "ask"),
            ("signal_refused", "signal"),
            ("spawn_refused", "spawn"),
            ("not_taken", "daemon"),
            ("method_not_allowed", "daemon"),
        ] {
            assert_eq!(named(spelled).map(|page| page.code), Some(code));
        }
    }
}
