//! Templates in the configuration of a dispatch: what replaces them, where secrets do not appear, and
//! dispatches whose templates cannot be replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{NotReplayed, RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{
    Answer, CallOrigin, Context, Dispatch, DispatchDeadline, FixedSecrets, Host, KeepArguments,
    Manifest, RecordingLimits, Secret, Secrets, Settings,
};
use sandglass_model::{Cause, Outcome, OutcomeKind, Recording, RejectionKind, RunReport};
use serde_json::{Value, json};

/// Returns its context as params.
const ECHO: &str = include_str!("../../../../guest-fixtures/wat/echo.wat");
const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");

const KEY: &str = "correct-horse";
/// A key of several lines, which has another form in JSON.
const PEM: &str = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n";
/// Too short to be hidden, so that a report shows that the guest had it.
const PIN: &str = "x7z";

fn host() -> Host {
    let settings = Settings { max_runs: 2, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

fn values() -> FixedSecrets {
    let secrets = [("API_KEY", KEY), ("PEM", PEM), ("PIN", PIN)];
    secrets.into_iter().map(|(name, value)| (name.to_owned(), Secret::new(value))).collect()
}

fn dispatch(config: &[(&str, &str)]) -> Dispatch {
    let config = config.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let entity_state = json!({ "status": "Open", "fields": {
        "region": "eu", "count": 7, "does": "echo", "quote": "{secret:API_KEY}",
    } });
    let context = Context { config, entity_state, ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_secs(10)))
}

async fn run(
    host: &Host,
    guest: &[u8],
    secrets: impl Secrets + 'static,
    of: Dispatch,
) -> RunReport {
    let manifest = Manifest::named("reporter").secrets(Arc::new(secrets));
    let guest = host.load(guest, manifest).expect("a guest");
    host.run(&guest, of).await.expect("the host did its work")
}

/// The context that [`ECHO`] returned.
fn context(report: &RunReport) -> Value {
    match &report.outcome {
        Outcome::Completed(completion) => json!(completion.params),
        other => panic!("{other:?}"),
    }
}

const CONFIG: &[(&str, &str)] = &[
    ("auth", "Bearer {secret:API_KEY}"),
    ("key", "{secret:PEM}"),
    ("open", "{secret:API_KEY"),
    ("path", "/{field:region}/{field:count}?{secret:PIN}"),
    ("quote", "{field:quote}"),
    ("{secret:API_KEY}", "{x} {Secret:API_KEY}"),
];

#[tokio::test]
async fn templates_are_replaced_and_secrets_are_in_no_report_and_no_recording() {
    let host = host();
    let limits = RecordingLimits { arguments: KeepArguments::Yes, ..RecordingLimits::default() };
    let report = run(&host, ECHO.as_bytes(), values(), dispatch(CONFIG).recorded(limits)).await;
    let context = context(&report);
    assert_eq!(
        context["integration_config"],
        json!({
            "auth": "Bearer [redacted]",
            "key": "[redacted]",
            "open": "{secret:API_KEY",
            "path": "/eu/7?x7z",
            "quote": "{secret:API_KEY}",
            "{secret:API_KEY}": "{x} {Secret:API_KEY}",
        })
    );
    assert_eq!(context["wasm_module"], "reporter");
    assert_eq!(context["entity_state"]["fields"]["quote"], "{secret:API_KEY}");

    let Some(Recording::Whole(recording)) = &report.recording else {
        panic!("{:?}", report.recording)
    };
    for secret in [KEY, "MIIEvQIBADANBg"] {
        assert!(!format!("{report:?}").contains(secret), "{report:?}");
        assert!(!recording.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
    }
    assert!(recording.windows(5).any(|bytes| bytes == b"/eu/7"), "it has the context otherwise");
}

#[tokio::test]
async fn a_replay_needs_the_secrets_of_templates_again() {
    let host = host();
    let recorded = dispatch(CONFIG).recorded(RecordingLimits::default());
    let report = run(&host, ECHO.as_bytes(), values(), recorded).await;
    let Some(Recording::Whole(recording)) = &report.recording else {
        panic!("{:?}", report.recording)
    };
    let recorded = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    assert_eq!(recorded.secrets().into_iter().collect::<Vec<_>>(), ["API_KEY", "PEM"]);
    let guest = host.load_for_replay(ECHO.as_bytes(), &recorded).expect("the guest");
    let end = RecordedEnd::from(&report);
    let given = |values: &[(&str, &str)]| {
        let secrets = values.iter().map(|(name, value)| ((*name).into(), Secret::new(*value)));
        Replay::new(&recorded, &end).secrets(secrets.collect::<BTreeMap<_, _>>())
    };
    for wrong in [&[][..], &[("API_KEY", KEY)], &[("API_KEY", KEY), ("PEM", "short")]] {
        let refused = host.replay(&guest, given(wrong)).await;
        assert!(matches!(refused, Err(NotReplayed::Secret(_))), "{refused:?}");
    }
    let replayed = host.replay(&guest, given(&[("API_KEY", KEY), ("PEM", PEM)])).await;
    assert_eq!(replayed.expect("replayed"), Replayed { calls: 3, divergence: None });
}

#[tokio::test]
async fn components_get_the_replaced_configuration_too() {
    let report = run(&host(), COMPONENT, values(), dispatch(&[("does", "{field:does}")])).await;
    assert_eq!(context(&report)["state"]["fields"]["does"], "echo");
}

#[tokio::test]
async fn a_template_that_cannot_be_replaced_rejects_the_dispatch() {
    let host = host();
    for (template, why) in [
        ("{secret:NONE}", "there is no such secret for this integration"),
        ("{secret:}", "there is no such secret for this integration"),
        ("{field:none}", "the entity has no such field"),
    ] {
        let config = [("auth", "{secret:API_KEY}"), ("url", template)];
        let of = dispatch(&config).recorded(RecordingLimits::default());
        let report = run(&host, ECHO.as_bytes(), values(), of).await;
        let Outcome::Rejected(rejection) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(rejection.kind, RejectionKind::UnresolvedTemplate);
        let named = format!("configuration `url`: `{template}` cannot be replaced: {why}");
        assert!(rejection.message.starts_with(&named), "{rejection}");
        assert_eq!((report.cause, report.host_calls.count), (Cause::NotStarted, 0));
        assert_eq!(report.recording, None, "there is nothing to replay");
        assert!(!format!("{report:?}").contains(KEY), "{report:?}");
    }
    // A secret that is not granted is never requested.
    let of = dispatch(&[("auth", "{secret:API_KEY}")]);
    let report = run(&host, ECHO.as_bytes(), FixedSecrets::default(), of).await;
    assert_eq!(report.outcome.kind(), OutcomeKind::Rejected);
}

#[tokio::test]
async fn the_replaced_configuration_is_bounded() {
    let large = Secret::new("x".repeat(1 << 20));
    let secrets: FixedSecrets = [("LARGE".to_owned(), large)].into_iter().collect();
    let of = dispatch(&[("a", "{secret:LARGE}"), ("b", "x")]);
    let report = run(&host(), ECHO.as_bytes(), secrets, of).await;
    let Outcome::Rejected(rejection) = &report.outcome else { panic!("{:?}", report.outcome) };
    assert_eq!(rejection.kind, RejectionKind::UnresolvedTemplate);
}

/// A store that never responds.
#[derive(Debug)]
struct Silent;

impl Secrets for Silent {
    fn secret<'a>(&'a self, _: &'a str, _: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn the_deadline_and_a_cancellation_end_the_wait_for_a_secret() {
    let host = host();
    let config = [("auth", "{secret:API_KEY}")];
    let of = dispatch(&config).deadline(DispatchDeadline::after(Duration::from_millis(200)));
    let report = run(&host, ECHO.as_bytes(), Silent, of).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!((&*exceeded.dying_span, exceeded.budget_ms), ("templates", 200));
    assert!(exceeded.elapsed_ms >= 200, "{exceeded:?}");

    let of = dispatch(&config);
    let handle = of.stop_handle();
    let stop = async {
        tokio::task::yield_now().await;
        handle.stop(Cause::Cancel, "enough");
    };
    let (report, ()) = tokio::join!(run(&host, ECHO.as_bytes(), Silent, of), stop);
    let Outcome::Cancelled(cancellation) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(cancellation.reason, "enough");
}
