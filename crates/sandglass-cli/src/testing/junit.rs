//! Writes results in the format of JUnit, which CI systems read.

use std::path::Path;

use anyhow::Context;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::Tested;
use crate::terminal::printable_path;

pub(super) fn write(all: &[Tested], path: &Path) -> anyhow::Result<()> {
    let mut report = Report::new("sandglass test");
    for tested in all {
        let mut suite = TestSuite::new(printable_path(&tested.suite.path));
        for (case, verdict) in tested.named() {
            let (status, took) = match &verdict.result {
                Ok(result) if result.passed() => (TestCaseStatus::success(), Some(result.took)),
                Ok(result) => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    let differences: Vec<String> =
                        result.differences.iter().map(ToString::to_string).collect();
                    status.set_message(result.differences.first().map_or("", |one| one.what));
                    status.set_description(differences.join("\n"));
                    (status, Some(result.took))
                }
                Err(why) => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
                    status.set_message(why.as_str());
                    (status, None)
                }
            };
            let mut test = TestCase::new(case.name.as_str(), status);
            if let Some(took) = took {
                test.set_time(took);
            }
            suite.add_test_case(test);
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().context("the report cannot be written as XML")?;
    std::fs::write(path, text).with_context(|| format!("can't write `{}`", path.display()))
}
