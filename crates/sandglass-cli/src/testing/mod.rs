//! Runs the test cases of guests, and reports the results.

mod arguments;
mod junit;
mod text;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use sandglass_host::Signature;
use sandglass_testkit::{Builder, Case, CaseResult, Guest, Kit, Suite, SuiteError, Update};
use serde_json::json;

use crate::diagnostic_text;
use crate::exit::Exit;
use crate::terminal::{Output, note, printable_path};

pub(crate) use self::arguments::Arguments;

/// The results of one suite.
struct Tested {
    suite: Suite,
    cases: Vec<Verdict>,
}

/// The result of one case.
struct Verdict {
    /// Its index in the file.
    index: usize,
    /// The run, or why it could not run.
    result: Result<CaseResult, String>,
}

impl Verdict {
    fn passed(&self) -> bool {
        self.result.as_ref().is_ok_and(CaseResult::passed)
    }
}

impl Tested {
    fn named(&self) -> impl Iterator<Item = (&Case, &Verdict)> {
        self.cases.iter().map(|verdict| (&self.suite.cases[verdict.index], verdict))
    }
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    if arguments.watch {
        return watch::run_again(arguments, || run(arguments).map(drop));
    }
    run(arguments)
}

fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let output = Output::new();
    let Some(suites) = suites(&arguments.paths, &output)? else { return Ok(Exit::Unusable) };
    let mut shared = kit(arguments, &[])?;
    let mut shared_guests = BTreeMap::new();
    let mut all = Vec::new();
    for suite in suites {
        // A suite that scripts host functions has a host of its own, where they are registered.
        let mut own = match suite.functions.as_slice() {
            [] => None,
            functions => Some((kit(arguments, functions)?, BTreeMap::new())),
        };
        let (kit, guests) = match &mut own {
            Some((kit, guests)) => (kit, guests),
            None => (&mut shared, &mut shared_guests),
        };
        let tested = match test(suite, kit, guests, arguments.filter.as_deref()) {
            Ok(tested) => tested,
            Err(SuiteError::Invalid(findings)) => {
                diagnostic_text::print(&findings, &output)?;
                return Ok(Exit::Unusable);
            }
            Err(error) => return Err(error.into()),
        };
        if !arguments.json && !tested.cases.is_empty() {
            text::print(&tested, &output)?;
        }
        if arguments.update {
            update(&tested, &output)?;
        }
        all.push(tested);
    }
    finish(&all, arguments, &output)
}

/// A kit with `functions`, which keeps compiled code.
fn kit(arguments: &Arguments, functions: &[Signature]) -> anyhow::Result<Kit> {
    let built = arguments.compiling.build(|folder, helper| {
        let helper = helper.baseline_from(arguments.optimizing.baseline_from(false));
        let builder = Kit::builder().compiled_cache_dir(folder).compile_in(helper);
        functions.iter().cloned().fold(builder, Builder::scripted).build()
    });
    built.context("can't start a host to test in")
}

fn finish(all: &[Tested], arguments: &Arguments, output: &Output) -> anyhow::Result<Exit> {
    let verdicts = || all.iter().flat_map(|tested| &tested.cases);
    let passed = verdicts().filter(|verdict| verdict.passed()).count();
    let failed = verdicts().count() - passed;
    if let Some(path) = &arguments.junit {
        junit::write(all, path)?;
    }
    if arguments.json {
        let suites: Vec<_> = all.iter().map(to_json).collect();
        output.json_pretty(&json!({ "suites": suites, "passed": passed, "failed": failed }))?;
    } else {
        text::summary(all, (passed, failed), output)?;
    }
    if passed + failed == 0 && arguments.filter.is_some() {
        note("no case has such a name");
        return Ok(Exit::Unusable);
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Failed })
}

/// All suites of `paths`, each once. `None` if one is invalid, after its findings are printed.
fn suites(paths: &[PathBuf], output: &Output) -> anyhow::Result<Option<Vec<Suite>>> {
    let (mut suites, mut wrong) = (Vec::<Suite>::new(), Vec::new());
    for path in paths {
        match Suite::find(path) {
            Ok(found) => {
                for suite in found {
                    if suites.iter().all(|other| other.path != suite.path) {
                        suites.push(suite);
                    }
                }
            }
            Err(SuiteError::Invalid(findings)) => wrong.extend(findings),
            Err(error) => return Err(error.into()),
        }
    }
    diagnostic_text::print(&wrong, output)?;
    Ok(wrong.is_empty().then_some(suites))
}

fn test(
    suite: Suite,
    kit: &mut Kit,
    guests: &mut BTreeMap<PathBuf, Result<Guest, String>>,
    filter: Option<&str>,
) -> Result<Tested, SuiteError> {
    let wanted = |case: &Case| filter.is_none_or(|filter| case.name.contains(filter));
    let mut cases = Vec::new();
    for (index, case) in suite.cases.iter().enumerate().filter(|(_, case)| wanted(case)) {
        if !guests.contains_key(&suite.guest) {
            let loaded = suite.load(kit)?.map_err(|why| format!("the host rejects it: {why}"));
            guests.insert(suite.guest.clone(), loaded);
        }
        let result = match &guests[&suite.guest] {
            Ok(guest) => kit.run(guest, case).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        cases.push(Verdict { index, result });
    }
    Ok(Tested { suite, cases })
}

/// Replaces the expectations of failed cases by what came, and prints the difference.
fn update(tested: &Tested, output: &Output) -> anyhow::Result<()> {
    let suite = &tested.suite;
    let mut update = Update::new(&suite.path, &suite.source)?;
    let mut changes = false;
    for verdict in &tested.cases {
        let wanted = !verdict.passed() || update.is_new(verdict.index);
        if let Some(result) = verdict.result.as_ref().ok().filter(|_| wanted) {
            update.expect(verdict.index, result)?;
            changes = true;
        }
    }
    if changes && update.after() != suite.source {
        output.line(update.diff().trim_end())?;
        update.write()?;
        output.line(format!("{}: written", printable_path(&suite.path)))?;
    }
    Ok(())
}

fn to_json(tested: &Tested) -> serde_json::Value {
    let case = |(case, verdict): (&Case, &Verdict)| match &verdict.result {
        Ok(result) => json!({
            "name": case.name,
            "passed": result.passed(),
            "took_us": u64::try_from(result.took.as_micros()).unwrap_or(u64::MAX),
            "virtual_ms": result.report.deadline.elapsed_ms,
            "outcome": result.actual.outcome,
            "differences": result.differences.iter().map(|one| json!({
                "what": one.what, "expected": one.expected, "found": one.actual,
            })).collect::<Vec<_>>(),
            "report": result.report,
        }),
        Err(why) => json!({ "name": case.name, "passed": false, "error": why }),
    };
    json!({
        "file": tested.suite.path,
        "guest": tested.suite.guest,
        "cases": tested.named().map(case).collect::<Vec<_>>(),
    })
}
