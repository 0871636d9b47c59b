//! How a pack describes itself.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{Host, PackDescription, Settings};
use sandglass_model::{Clock, Monotonic, RejectionKind, WallTime};

use super::kit::{Pack, host, load};

#[tokio::test]
async fn a_pack_describes_its_nodes_in_either_form() {
    let host = host();
    for pack in [Pack::default(), Pack::default().packed()] {
        let described = host.describe_pack(&load(&host, &pack.text())).await;
        let node_types = vec!["test.one".to_owned(), "test.two".to_owned()];
        let expected = PackDescription { abi_version: 1, name: "test.pack".to_owned(), node_types };
        assert_eq!(described, Ok(expected));
    }
    let none = Pack { node_count: "(i32.const 0)", ..Pack::default() };
    let described = host.describe_pack(&load(&host, &none.text())).await.expect("a pack");
    assert!(described.node_types.is_empty());
}

#[tokio::test]
async fn an_invalid_description_is_refused() {
    let host = host();
    let pack = Pack::default;
    for (pack, kind, said) in [
        (
            Pack { abi_version: "(i32.const 2)", ..pack() },
            RejectionKind::UnsupportedAbiVersion,
            "version 2 of the OpenWOP node pack ABI, and this host runs version 1",
        ),
        (
            Pack { abi_version: "(i32.const -1)", ..pack() },
            RejectionKind::UnsupportedAbiVersion,
            "version 4294967295",
        ),
        (Pack { abi_version: "unreachable", ..pack() }, RejectionKind::InvalidPack, "trapped"),
        (
            Pack { pack_name: "(i32.const -1) (i32.const 2)", ..pack() },
            RejectionKind::InvalidPack,
            "`openwop_pack_name`: the name lies outside",
        ),
        (
            Pack { pack_name: "(i32.const 16) (i32.const 257)", ..pack() },
            RejectionKind::InvalidPack,
            "a name of 257 bytes, and it must have 1 to 256",
        ),
        (
            Pack { pack_name: "(i32.const 16) (i32.const 0)", ..pack() },
            RejectionKind::InvalidPack,
            "a name of 0 bytes",
        ),
        (
            Pack { pack_name: "(i32.const 1) (i32.const 2)", ..pack() },
            RejectionKind::InvalidPack,
            "control characters",
        ),
        (
            Pack {
                pack_name: "(i32.store8 (i32.const 1) (i32.const 255)) (i32.const 1) (i32.const 1)",
                ..pack()
            },
            RejectionKind::InvalidPack,
            "no UTF-8",
        ),
        (
            Pack { node_count: "(i32.const 257)", ..pack() },
            RejectionKind::InvalidPack,
            "257 nodes, and 256 are allowed",
        ),
        (
            Pack { node_count: "(i32.const -1)", ..pack() },
            RejectionKind::InvalidPack,
            "4294967295 nodes",
        ),
        (
            Pack { node_count: "(drop (memory.grow (i32.const 100))) unreachable", ..pack() },
            RejectionKind::NeedsTooMuch,
            "bytes of memory",
        ),
        (
            Pack { node_id_at: "(i32.const 32) (i32.const 8)", ..pack() },
            RejectionKind::InvalidPack,
            "the node `test.one` more than once",
        ),
        (
            Pack { node_id_at: "(i32.const 32) (i32.const -1)", ..pack() },
            RejectionKind::InvalidPack,
            "`openwop_node_id_at`: the name lies outside",
        ),
        (
            Pack { node_count: "(call $interrupt (i32.const 0) (i32.const 1)) drop", ..pack() },
            RejectionKind::InvalidPack,
            "calls `openwop_interrupt`",
        ),
        (
            Pack { more: "(func $start unreachable) (start $start)".to_owned(), ..pack() },
            RejectionKind::InvalidPack,
            "trapped",
        ),
    ] {
        let described = host.describe_pack(&load(&host, &pack.text())).await;
        let refused = described.expect_err(said);
        assert_eq!(refused.kind, kind, "{refused:?}");
        assert!(refused.message.contains(said), "{refused:?}");
    }
    let handler = r#"(module (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;
    let refused = host.describe_pack(&load(&host, handler)).await.expect_err("a handler");
    assert_eq!(refused.kind, RejectionKind::InvalidDispatch);
}

/// Tokio's clock.
#[derive(Debug)]
struct Tokios(tokio::time::Instant);

#[expect(clippy::disallowed_methods, reason = "this is simulated time")]
impl Clock for Tokios {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(1).after(self.0.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(1_700_000_000_000).after(self.0.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_never_describes_itself_is_refused_when_its_budget_ends() {
    #[expect(clippy::disallowed_methods, reason = "this is simulated time")]
    let clock = Tokios(tokio::time::Instant::now());
    let settings = Settings { max_runs: 2, ..Settings::default() };
    let host = Host::builder()
        .settings(settings)
        .simulated_clock(Arc::new(clock))
        .simulated_compute_max(Duration::from_millis(20))
        .build()
        .expect("a host");
    let spin = "(loop (br 0)) unreachable";
    for pack in [
        Pack { abi_version: spin, ..Pack::default() },
        Pack { node_id_at: spin, ..Pack::default() },
    ] {
        let refused = host.describe_pack(&load(&host, &pack.text())).await.expect_err("it spins");
        assert_eq!(refused.kind, RejectionKind::InvalidPack);
        assert!(refused.message.contains("within 5000 ms"), "{refused:?}");
    }
}
