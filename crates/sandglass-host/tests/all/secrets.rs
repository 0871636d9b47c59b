//! Secrets from an embedder's own store.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Answer, CallOrigin, Context, Dispatch, DispatchDeadline, Host, Manifest, Secret, Secrets,
    Settings,
};
use sandglass_model::{CallOutcome, OutcomeKind};

/// A store that never responds.
#[derive(Debug)]
struct Silent;

impl Secrets for Silent {
    fn secret<'a>(&'a self, _: &'a str, _: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        Box::pin(std::future::pending())
    }
}

const ASKS: &[u8] = br#"(module
    (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "token")
    (func (export "run") (param i32 i32) (result i32)
        (call $secret (i32.const 8) (i32.const 5) (i32.const 64) (i32.const 64))))"#;

#[tokio::test]
async fn a_guest_that_waits_for_a_secret_is_killed_in_that_call() {
    let component = include_bytes!("../../../../guest-fixtures/built/component.wasm");
    let settings = Settings { max_runs: 2, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    for (guest, span) in
        [(ASKS, "host_get_secret"), (component, "sandglass:integration/secrets.get")]
    {
        let manifest = Manifest::named("guest").secrets(Arc::new(Silent));
        let guest = host.load(guest, manifest).expect("a guest");
        let config = [("does".to_owned(), "read_secret".to_owned())].into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(Duration::from_millis(200)));
        let report = host.run(&guest, dispatch).await.expect("it ran");
        assert_eq!(report.outcome.kind(), OutcomeKind::TimedOut, "{report:?}");
        assert_eq!(report.dying_span.as_deref(), Some(span));
        let last = report.story.calls.last().expect("it called");
        assert_eq!((&*last.name, last.outcome), (span, CallOutcome::Unfinished));
    }
}
