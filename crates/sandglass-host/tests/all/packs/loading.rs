//! Loading and inspecting packs, before anything of them is executed.

use std::sync::Arc;

use sandglass_host::{Abi, FixedSecrets, Manifest};
use sandglass_model::RejectionKind;
use serde_json::json;

use super::kit::{Pack, host, load};

#[test]
fn a_module_that_does_not_fit_is_rejected_with_a_reason() {
    let host = host();
    let pack = Pack::default().text();
    for (from, to, kind, said) in [
        (
            "\"openwop_alloc\"",
            "\"openwop_malloc\"",
            RejectionKind::MissingExport,
            "does not export `openwop_alloc` (the nearest that it exports is `openwop_malloc`)",
        ),
        (
            "\"openwop_node_invoke\"",
            "\"x\"",
            RejectionKind::MissingExport,
            "a function (i32, i32, i32) -> (i32, i32) or (i32, i32, i32) -> (i64)",
        ),
        ("(export \"memory\")", "(export \"memories\")", RejectionKind::MissingExport, "`memory`"),
        (
            "(func (export \"openwop_node_count\") (result i32) (i32.const 2))",
            "(func (export \"openwop_node_count\") (result i64) (i64.const 2))",
            RejectionKind::WrongSignature,
            "as () -> (i64), and it must be () -> (i32)",
        ),
        (
            "(import \"openwop\" \"openwop_now_ms\" (func $now (result i64)))",
            "(import \"openwop\" \"openwop_now_ms\" (func $now (result f64)))",
            RejectionKind::WrongSignature,
            "`openwop.openwop_now_ms` as () -> (f64), and it is () -> (i64)",
        ),
        (
            "\"openwop_random\"",
            "\"openwop_randon\"",
            RejectionKind::MissingImport,
            "did you mean `openwop.openwop_random`?",
        ),
        (
            "(import \"openwop\" \"openwop_random\" (func $random (param i32 i32)))",
            "(import \"env\" \"host_get_time_millis\" (func $t (result i64))) (func $random (param i32 i32))",
            RejectionKind::MissingImport,
            "they import from `openwop` alone",
        ),
        (
            "(import \"openwop\" \"openwop_random\" (func $random (param i32 i32)))",
            "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func $x (param i32))) (func $random (param i32 i32))",
            RejectionKind::MissingImport,
            "there is no WASI for them",
        ),
        (
            "(import \"openwop\" \"openwop_random\" (func $random (param i32 i32)))",
            "(import \"openwop\" \"openwop_channel_read\" (func (param i32 i32) (result i64))) (func $random (param i32 i32))",
            RejectionKind::WrongSignature,
            "with both of its types",
        ),
        (
            "(memory (export \"memory\") 2)",
            "(memory (export \"memory\") 2000)",
            RejectionKind::NeedsTooMuch,
            "begins with 131072000 bytes of memory",
        ),
    ] {
        let bad = pack.replace(from, to);
        assert_ne!(bad, pack, "{from}");
        let refused = host.load(bad.as_bytes(), Manifest::named("pack")).expect_err(said);
        assert_eq!(refused.kind, kind, "{refused:?}");
        assert!(refused.message.contains(said), "{refused:?}");
    }
}

#[test]
fn a_manifest_can_state_that_its_module_is_a_pack() {
    let host = host();
    let (pack, handler) = (Pack::default().text(), "(module (func (export \"run\")))");
    let load = |module: &str, abi| {
        let manifest = Manifest::named("pack").abi(abi);
        host.load(module.as_bytes(), manifest).map_err(|refused| refused.kind).map(drop)
    };
    assert_eq!(load(&pack, Abi::NodePack), Ok(()));
    for (module, abi) in [(&*pack, Abi::Core), (handler, Abi::NodePack)] {
        assert_eq!(load(module, abi), Err(RejectionKind::ModuleAbiMismatch));
    }
    let parsed = sandglass_host::manifest::File::parse(
        "name = \"p\"\nmodule = \"p.wasm\"\nabi = \"openwop\"\n[limits]\nmodule_size = \"1MiB\"\n",
    );
    let file = parsed.file.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics));
    assert_eq!(file.manifest(Arc::new(FixedSecrets::default())).module_max_bytes(), 1 << 20);
}

#[test]
fn an_inspection_describes_a_pack_without_executing_it() {
    let host = host();
    for pack in [Pack::default(), Pack::default().packed()] {
        let inspection = host.inspect(pack.text().as_bytes()).expect("a pack");
        assert_eq!(inspection.abi, Abi::NodePack);
        assert_eq!(inspection.contract, "OpenWOP node pack ABI 1");
        assert!(inspection.missing_exports.is_empty(), "{inspection:?}");
        let is_good = |import: &sandglass_host::inspection::Import| {
            import.is_known && import.expected_signature.is_none() && import.group.is_some()
        };
        assert_eq!(inspection.imports.iter().filter(|import| is_good(import)).count(), 8);
        let used = inspection.exports.iter().filter(|export| export.is_used);
        assert_eq!(used.count(), 8);
        assert!(inspection.exports.iter().all(|export| export.expected_signature.is_none()));
        assert_eq!(serde_json::to_value(inspection.abi).expect("plain"), json!("openwop"));
    }
    let bad = Pack::default().text().replace("\"openwop_random\"", "\"openwop_randon\"");
    let inspection = host.inspect(bad.as_bytes()).expect("a pack");
    let unknown = inspection.imports.iter().find(|import| !import.is_known).expect("one");
    assert_eq!(unknown.nearest.as_deref(), Some("openwop.openwop_random"));
    let bad = Pack::default().text().replace("\"openwop_free\"", "\"openwop_fre\"");
    let inspection = host.inspect(bad.as_bytes()).expect("a pack");
    let missing = &inspection.missing_exports[0];
    assert_eq!((missing.name, &*missing.signature), ("openwop_free", "(i32, i32) -> ()"));
    assert_eq!(missing.nearest.as_deref(), Some("openwop_fre"));
}

#[test]
fn a_pack_never_waits_and_is_executed_on_demand() {
    let pack = load(&host(), &Pack::default().text());
    assert!(pack.waits_in().is_empty());
    assert_eq!(pack.allocation(), sandglass_host::Allocation::OnDemand);
}
