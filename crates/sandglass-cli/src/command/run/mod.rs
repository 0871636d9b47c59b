//! Runs one guest as the runtime runs any handler: with an entity, an action, records and a
//! decision. Only the spec is generated.

mod arguments;
mod automaton;
mod capture;
mod grants;
mod own_journal;
mod report;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{Host, Manifest, Settings, file};
use sandglass_journal::{Journal, MemoryJournal, Page};
use sandglass_liveness::Spec;
use sandglass_model::{
    Clock, EntityRef, Event, Incarnation, Object, Outcome, Position, Rejection, RejectionKind,
    RulesVersion, RunReport, SpecDigest, SystemClock,
};
use sandglass_runtime::{HostHandlers, Module, Runtime, SpecDecisions};
use sandglass_telemetry::{Metrics, Telemetry, Tracer, otlp};

use self::arguments::Form;
pub(crate) use self::arguments::{Arguments, DEADLINE_MAX};
use self::automaton::Sketch;
use self::capture::Capture;
use self::own_journal::OwnJournal;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::terminal::note;
use crate::{journal_file, threads};

/// How long the journal and the exporter may take to close.
const GRACE: Duration = Duration::from_secs(5);

/// [`GRACE`] after Ctrl-C: every record is on the disk by then.
const CANCELLED_GRACE: Duration = Duration::from_millis(100);

/// Largest file of parameters, in bytes: the limit of the runtime.
const INPUT_MAX_BYTES: u64 = 1 << 20;

/// Slots of the host: one handler has one instance.
const MAX_RUNS: u32 = 1;

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    match run_traced(arguments) {
        Ok((report, memory_bytes)) => {
            report::print(&report, memory_bytes, arguments.report)?;
            if let Some(dropped) = report::describe_dropped(&report) {
                note(&dropped);
            }
            Ok(exit(&report.outcome))
        }
        Err(rejection) => report_rejection(&rejection, arguments.report),
    }
}

/// Reports that the handler was not started, because of an error in the environment.
pub(crate) fn refuse(arguments: &Arguments, why: &anyhow::Error) -> anyhow::Result<Exit> {
    report_rejection(&invalid(format!("{why:#}")), arguments.report)
}

/// Reports invalid arguments as JSON.
pub(crate) fn refuse_arguments(why: &str) -> anyhow::Result<Exit> {
    report_rejection(&invalid(why.to_owned()), Form::Json)
}

fn report_rejection(rejection: &Rejection, form: Form) -> anyhow::Result<Exit> {
    report::print_rejection(rejection, form)?;
    Ok(Exit::Rejected)
}

/// Runs the handler, with its spans exported if the environment configures that. Returns its report,
/// and the memory that it was granted.
fn run_traced(arguments: &Arguments) -> Result<(RunReport, u64), Rejection> {
    let metrics = Metrics::disabled();
    let otlp = otlp::from_env(&metrics).map_err(|error| invalid(error.to_string()))?;
    let tracer = otlp.as_ref().map_or_else(Tracer::disabled, otlp::Otlp::tracer);
    let telemetry = Telemetry { metrics, tracer };
    let tokio = threads::start(Some(2))
        .map_err(|error| unavailable(format_args!("can't start threads: {error}")))?;
    let ran = tokio.block_on(run(arguments, telemetry));
    // A compilation that is still running is abandoned.
    let is_cancelled =
        ran.as_ref().is_ok_and(|(report, _)| matches!(report.outcome, Outcome::Cancelled(_)));
    tokio.shutdown_timeout(if is_cancelled { CANCELLED_GRACE } else { GRACE });
    if let Some(otlp) = otlp {
        report_lost_spans(&otlp.shutdown(GRACE));
    }
    ran
}

/// Reports spans that were not exported.
fn report_lost_spans(stopped: &otlp::ShutdownReport) {
    let why = match (&stopped.error, &stopped.refusal) {
        (Some(error), _) => error.to_string(),
        (None, Some(refusal)) => refusal.clone(),
        (None, None) => "the collector was too slow".to_owned(),
    };
    match stopped.lost {
        0 if stopped.error.is_none() => {}
        0 => note(&why),
        1 => note(&format!("1 span was not exported: {why}")),
        lost => note(&format!("{lost} spans were not exported: {why}")),
    }
}

fn exit(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Completed(_) => Exit::Ok,
        Outcome::Failed(_) => Exit::Failed,
        Outcome::TimedOut(_) => Exit::TimedOut,
        Outcome::Trapped(_) | Outcome::Limit(_) => Exit::Trapped,
        Outcome::Cancelled(_) => Exit::Cancelled,
        Outcome::Rejected(_) | Outcome::Interrupted => Exit::Rejected,
    }
}

fn invalid(message: String) -> Rejection {
    Rejection { kind: RejectionKind::InvalidDispatch, message }
}

fn unavailable(error: impl std::fmt::Display) -> Rejection {
    Rejection { kind: RejectionKind::HostUnavailable, message: error.to_string() }
}

async fn run(arguments: &Arguments, telemetry: Telemetry) -> Result<(RunReport, u64), Rejection> {
    // First, because it may wait for typed input, which Ctrl-C ends together with the process.
    let params = params(arguments.input.as_deref())?;
    // Before everything else that takes time, so that Ctrl-C leads to a report.
    let mut interrupts = Interrupts::listen().map_err(unavailable)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let state = arguments.state.as_deref().map(state::read).transpose()?.unwrap_or_default();
    let entity = entity(arguments.entity.as_ref(), &state)?;
    let source = automaton::source(&Sketch {
        entity_type: entity.entity_type(),
        guest: &arguments.guest,
        action: &arguments.action,
        deadline: arguments.deadline,
        config: &arguments.config,
    });
    let manifest = grants::of(arguments)?;
    let settings = settings(&manifest);
    let memory_bytes = manifest.limits.memory_bytes;
    let bytes = guest(&arguments.guest, manifest.module_max_bytes())?;
    let module = Module::new(bytes, manifest);
    let host = arguments.compiling.build(|compiled_cache_dir, helper| {
        Host::builder()
            .settings(Settings { compiled_cache_dir, ..settings.clone() })
            .clock(Arc::clone(&clock))
            .telemetry(telemetry.clone())
            .spec_evaluator(Arc::new(SpecDecisions))
            .compile_in(
                helper
                    .baseline_from(arguments.optimizing.baseline_from(arguments.journal.is_some())),
            )
            .build()
    });
    let host = host.map_err(unavailable)?;
    let modules = [(automaton::MODULE.to_owned(), module)];
    let handlers = HostHandlers::new(host, Arc::clone(&clock), modules).entity_state(state);
    let handlers = Capture::new(handlers);
    let journal = journal(arguments.journal.as_deref())?;
    check_settings(&*journal, &entity, &source).await?;
    let runtime = Runtime::builder(Arc::new(OwnJournal::new(journal, entity.clone())))
        .clock(clock)
        .telemetry(telemetry)
        .handlers(handlers.clone())
        .specs([spec(&source)?])
        .build()
        .await
        .map_err(unavailable)?;
    let settled = run_to_end(&runtime, &entity, &arguments.action, params, &mut interrupts).await;
    runtime.shutdown(GRACE).await;
    settled?;
    let report = handlers.report();
    let lost = || unavailable("the report was lost because of an error in the host");
    report.map(|report| (report, memory_bytes)).ok_or_else(lost)
}

/// Rejects an entity that the journal has with other settings, before anything is decided about
/// it.
async fn check_settings(
    journal: &dyn Journal,
    entity: &EntityRef,
    source: &str,
) -> Result<(), Rejection> {
    let page = journal.read_entity(entity.clone(), Position(0), 1).await;
    let records = page.and_then(Page::into_records).map_err(unavailable)?;
    // An earlier version of the rules counts as equal: the entity migrates to the current one.
    let same = RulesVersion::ALL.map(|rules| SpecDigest::of(source, rules));
    let other = records.iter().any(|record| match record.event {
        Event::Created { spec, .. } => !same.contains(&spec),
        _ => false,
    });
    if other {
        return Err(invalid(format!(
            "{entity} is in this journal with other settings, and an entity keeps those that it \
             was made with; name another --entity"
        )));
    }
    Ok(())
}

/// Has the entity take the action, and waits until its handler has ended and that
/// is recorded; Ctrl-C or SIGTERM cancels it, and a second one waits no longer.
async fn run_to_end(
    runtime: &Runtime,
    entity: &EntityRef,
    action: &str,
    params: Object,
    interrupts: &mut Interrupts,
) -> Result<(), Rejection> {
    if runtime.entity(entity).await.is_err() {
        runtime.create(entity.clone()).await.map_err(unavailable)?;
    }
    runtime.send(entity, action, params).await.map_err(unavailable)?;
    let settled = runtime.settled(entity);
    tokio::pin!(settled);
    let mut is_cancelled = false;
    loop {
        tokio::select! {
            biased;
            settled = &mut settled => return settled.map(drop).map_err(unavailable),
            _ = interrupts.next() => {
                if is_cancelled {
                    return Err(unavailable("stopped before the handler had ended"));
                }
                is_cancelled = true;
                runtime.cancel(entity, None, "interrupted").await.map_err(unavailable)?;
            }
        }
    }
}

fn params(input: Option<&str>) -> Result<Object, Rejection> {
    let text = match input {
        None => return Ok(Object::new()),
        Some(input) => match input.strip_prefix('@') {
            None => Ok(input.to_owned()),
            Some("-") => file::text_of(std::io::stdin(), Path::new("-"), INPUT_MAX_BYTES),
            Some(path) => file::read_text(Path::new(path), INPUT_MAX_BYTES),
        },
    };
    let text = text.map_err(|error| invalid(format!("--input: {error}")))?;
    if text.trim().is_empty() {
        return Err(invalid("--input: it is empty; write a JSON object, such as {}".to_owned()));
    }
    serde_json::from_str(&text)
        .map_err(|error| invalid(format!("--input: it must be a JSON object: {error}")))
}

fn guest(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Rejection> {
    file::read(path, max_bytes).map_err(|error| {
        let kind = match error {
            file::Error::TooLarge { .. } => RejectionKind::ModuleTooLarge,
            _ => RejectionKind::UnknownModule,
        };
        Rejection { kind, message: format!("guest module: {error}") }
    })
}

fn entity(argument: Option<&EntityRef>, state: &Object) -> Result<EntityRef, Rejection> {
    let (entity_type, id) = state::entity(argument, state)?;
    let random = || Incarnation::random().map(|id| id.to_string()).map_err(unavailable);
    let id = id.map_or_else(random, Ok)?;
    EntityRef::new(entity_type.as_deref().unwrap_or("Run"), id)
        .map_err(|error| invalid(format!("--state: {error}")))
}

fn spec(source: &str) -> Result<Spec, Rejection> {
    let parsed = Spec::parse(source);
    parsed.spec.ok_or_else(|| {
        let why: Vec<String> = parsed.diagnostics.into_iter().map(|one| one.message).collect();
        invalid(format!("the entity or its configuration is invalid: {}", why.join("; ")))
    })
}

/// How long the report waits for the names and lines of its frames.
const SYMBOLS_WAIT: Duration = Duration::from_secs(5);

/// Settings for one handler with the memory that it is granted.
fn settings(manifest: &Manifest) -> Settings {
    let defaults = Settings::default();
    Settings {
        max_runs: MAX_RUNS,
        max_memory_bytes: defaults.max_memory_bytes.max(manifest.limits.memory_bytes),
        symbols_wait: SYMBOLS_WAIT,
        ..defaults
    }
}

fn journal(path: Option<&Path>) -> Result<Arc<dyn Journal>, Rejection> {
    let Some(path) = path else { return Ok(Arc::new(MemoryJournal::new())) };
    let journal =
        journal_file::open(path).map_err(|error| invalid(format!("--journal: {error}")))?;
    Ok(Arc::new(journal))
}
