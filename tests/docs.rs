//! Keeps the pages whole: relative links and anchors resolve, indexes are complete, and decision
//! records have one form.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files and folders with pages. Other Markdown is part of a page, or a template of one.
const PAGES: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "dashboards",
    "docs",
    "guest-fixtures/README.md",
    "guest-fixtures/openwop/README.md",
];

/// The headings of a decision record, in order.
const HEADINGS: &[&str] = &["Context", "Decision", "Consequences", "How it is tested", "Rejected"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(path: &Path, into: &mut BTreeMap<PathBuf, String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder can be read") {
            collect(&entry.expect("an entry can be read").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "md") {
        let page = fs::canonicalize(path).expect("a page exists");
        into.insert(page, fs::read_to_string(path).expect("a page can be read"));
    }
}

fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    PAGES.iter().for_each(|path| collect(&root().join(path), &mut pages));
    pages
}

/// The lines of a page outside of code blocks, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_fence && !is_code).then_some((at + 1, line))
    })
}

/// `line` without inline code, in which brackets are no links.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of the links in a line.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let links = line.split("](").skip(1);
    links.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// The anchor that renderers give a heading: lower case, without punctuation, spaces as hyphens.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page. A repeated heading gets a number.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(page) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let count: &mut usize = counts.entry(anchor.clone()).or_default();
        anchors.insert(match *count {
            0 => anchor,
            repeated => format!("{anchor}-{repeated}"),
        });
        *count += 1;
    }
    anchors
}

#[test]
fn relative_links_and_anchors_resolve() {
    let pages = pages();
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> =
        pages.iter().map(|(path, page)| (path, anchors(page))).collect();
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for (line, target) in
            prose(page).flat_map(|(at, line)| targets(line).into_iter().map(move |to| (at, to)))
        {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let linked = match file {
                "" => Ok(path.clone()),
                file => fs::canonicalize(path.with_file_name(file)),
            };
            let resolves = linked.is_ok_and(|linked| {
                fragment.is_empty()
                    || anchors.get(&linked).is_none_or(|anchors| anchors.contains(fragment))
            });
            if !resolves {
                broken.push(format!("{}:{line}: {target}", path.display()));
            }
        }
    }
    assert!(pages.len() > 100, "only {} pages were found", pages.len());
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_page_is_listed_in_the_index_of_its_folder() {
    let pages = pages();
    let docs = fs::canonicalize(root().join("docs")).expect("the folder exists");
    for index in [docs.join("README.md"), docs.join("adr/README.md"), docs.join("errors/README.md")]
    {
        let folder = index.parent().expect("it is in a folder");
        let linked: BTreeSet<PathBuf> = prose(&pages[&index])
            .flat_map(|(_, line)| targets(line))
            .filter_map(|target| fs::canonicalize(folder.join(target.split('#').next()?)).ok())
            .collect();
        let missing: Vec<&PathBuf> = pages
            .keys()
            .filter(|page| page.parent() == Some(folder) && **page != index)
            .filter(|page| !linked.contains(*page))
            .collect();
        assert!(missing.is_empty(), "{} does not list {missing:?}", index.display());
    }
}

#[test]
fn every_decision_record_has_a_number_a_status_a_date_and_the_same_headings() {
    let records = pages();
    let records = records.iter().filter_map(|(path, page)| {
        let name = path.file_stem()?.to_str()?;
        let number: u32 = name.split('-').next()?.parse().ok()?;
        path.parent()?.ends_with("adr").then_some((number, page))
    });
    let mut expected = 1;
    for (number, page) in records {
        assert_eq!(number, expected, "decision records are numbered without gaps");
        expected += 1;
        let line = |at: usize| page.lines().nth(at).unwrap_or_default();
        assert!(line(0).starts_with(&format!("# {number}. ")), "record {number}: its title");
        let status = line(2).strip_prefix("Status: ").unwrap_or_default();
        let is_known = status == "accepted"
            || ["amended by ADR ", "superseded by ADR "].iter().any(|one| status.starts_with(one));
        assert!(is_known, "record {number}: its status is `{status}`");
        let date = line(4).strip_prefix("Date: ").unwrap_or_default();
        assert!(
            date.len() == 10 && date.starts_with("20"),
            "record {number}: its date is `{date}`"
        );
        let headings: Vec<&str> =
            prose(page).filter_map(|(_, line)| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "record {number}: its headings");
    }
    assert!(expected > 35, "only {} records were found", expected - 1);
}

#[test]
fn excerpts_of_examples_are_up_to_date() {
    let trimmed =
        |text: &str| -> String { text.lines().map(|line| line.trim().to_owned() + "\n").collect() };
    let folder = root().join("crates/sandglass-host/examples");
    let examples: String = fs::read_dir(folder)
        .expect("a folder can be read")
        .map(|entry| fs::read_to_string(entry.expect("an entry can be read").path()))
        .map(|example| trimmed(&example.expect("an example can be read")))
        .collect();
    let page = fs::read_to_string(root().join("docs/embedding.md")).expect("a page can be read");
    let excerpts: Vec<_> = page.split("```rs\n").skip(1).collect();
    assert!(!excerpts.is_empty(), "the page presents the examples");
    for excerpt in excerpts {
        let excerpt = excerpt.split("```").next().unwrap_or_default();
        assert!(examples.contains(&trimmed(excerpt)), "no example has these lines:\n{excerpt}");
    }
}
