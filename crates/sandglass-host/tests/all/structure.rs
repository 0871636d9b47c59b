//! Bounds on the structure of modules: one that is built to overflow a stack, or to take minutes and
//! gigabytes, is rejected before anything recurses into it.

mod shapes;

use std::path::{Path, PathBuf};

use proptest::prelude::{Strategy as _, any};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sandglass_host::{Bound, Host, Settings, structural_figures};
use sandglass_model::RejectionKind;

/// Modules of a given size that exceed one bound, and how many of their items count as one.
#[expect(clippy::type_complexity, reason = "a table")]
const SHAPES: &[(Bound, u64, fn(u32) -> Vec<u8>)] = &[
    (Bound::TypeDepth, 1, |size| shapes::nested_types(size as usize)),
    (Bound::TypeDepth, 1, |size| shapes::nested_component_types(size as usize)),
    (Bound::ComponentDepth, 1, |size| shapes::nested_components(size as usize)),
    (Bound::ReferenceDepth, 1, shapes::types_by_reference),
    (Bound::LoopDepth, 1, |size| shapes::loops(size, 1)),
    (Bound::BlockDepth, 1, shapes::blocks),
    (Bound::CatchDepth, 1, |size| shapes::catches(size, 1)),
    (Bound::CatchDepth, 10, |size| shapes::catches(size, 10)),
    (Bound::FunctionLocals, 1, shapes::locals),
    (Bound::FunctionValues, 1000, shapes::results),
    (Bound::StartupItems, 1, shapes::elements),
    (Bound::DataImageBytes, 16 << 20, shapes::sparse_data),
    (Bound::Instances, 1, |size| shapes::instances(&shapes::globals(1), size)),
    (Bound::Instances, 1, |size| shapes::passed_module(&shapes::globals(1), size)),
    (Bound::Adapters, 1, shapes::adapters),
    (Bound::NameBytes, 50_000, shapes::names),
];

fn figure(binary: &[u8], bound: Bound) -> u64 {
    let figures = structural_figures(binary);
    figures.into_iter().find(|(of, _)| *of == bound).expect("all bounds are listed").1
}

fn host() -> Host {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

/// Sizes differ in each run. The seed is printed; `SANDGLASS_SHAPES_SEED` repeats it.
#[expect(clippy::print_stdout, reason = "a failure shows it")]
fn sizes() -> TestRunner {
    let seed = std::env::var("SANDGLASS_SHAPES_SEED").ok();
    let seed: u64 = match seed {
        Some(seed) => seed.parse().expect("a number"),
        None => {
            let mut runner = TestRunner::default();
            any::<u64>().new_tree(&mut runner).expect("a number").current()
        }
    };
    println!("SANDGLASS_SHAPES_SEED={seed}");
    let bytes = [seed.to_le_bytes(); 4].concat();
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn a_module_of_any_size_beyond_a_bound_is_rejected_and_one_within_is_not() {
    let (host, mut runner) = (host(), sizes());
    for (bound, each, shape) in SHAPES {
        let most = u32::try_from(bound.most() / each).expect("small");
        let within = (1..=most / 2).new_tree(&mut runner).expect("a size").current();
        let beyond = (most + 2..=4 * most + 8).new_tree(&mut runner).expect("a size").current();
        let is_within = figure(&shape(within), *bound);
        assert!(is_within <= bound.most(), "{bound:?} of {within}: {is_within}");
        let rejection = host.inspect(&shape(beyond)).expect_err("it is beyond the bound");
        assert_eq!(rejection.kind, RejectionKind::ModuleTooLarge, "{beyond}: {rejection}");
        assert!(rejection.message.contains(bound.what()), "{beyond}: {rejection}");
    }
}

#[test]
fn instances_that_double_at_each_level_are_counted_without_making_them() {
    let host = host();
    for levels in [11, 40, 500] {
        let component = shapes::doubled_instances(&shapes::globals(1), levels);
        let rejection = host.inspect(&component).expect_err("more than a thousand");
        assert_eq!(rejection.kind, RejectionKind::ModuleTooLarge, "{levels}: {rejection}");
    }
}

#[test]
fn a_module_that_is_nested_a_hundred_thousand_times_overflows_no_stack() {
    let host = host();
    for nested in [shapes::nested_types, shapes::nested_component_types, shapes::nested_components]
    {
        let rejection = host.inspect(&nested(100_000)).expect_err("far too deep");
        assert_eq!(rejection.kind, RejectionKind::ModuleTooLarge, "{rejection}");
    }
}

fn guests(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("it is a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            guests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "wasm") {
            found.push(path);
        }
    }
}

#[test]
fn guests_of_toolchains_use_at_most_a_half_of_each_bound() {
    let mut found = Vec::new();
    guests(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures/built"), &mut found);
    assert!(!found.is_empty());
    for guest in found {
        let binary = std::fs::read(&guest).expect("it can be read");
        for (bound, figure) in structural_figures(&binary) {
            assert!(figure <= bound.most() / 2, "{}: {bound:?} {figure}", guest.display());
        }
    }
}

#[test]
fn text_that_is_too_long_is_rejected_before_it_is_parsed() {
    let text = format!("(module {})", "(func nop)\n".repeat(100_000));
    let rejection = host().inspect(text.as_bytes()).expect_err("too long");
    assert_eq!(rejection.kind, RejectionKind::ModuleTooLarge, "{rejection}");
    assert!(rejection.message.contains("text of 1100009 bytes"), "{rejection}");
}
