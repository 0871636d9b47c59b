//! The host inside an actor runtime, kameo: a message to an actor starts a guest, and the end of the
//! guest is a message to the actor. A missed deadline is a message of its own, `HandlerTimedOut`.
//!
//! ```text
//! client            Session (actor)                   host
//!   │ ProcessToolCalls ─▶│ state: Executing              │
//!   │                    │ dispatch ────────────────────▶│ guest
//!   │                    │◀── Progress ──────────────────│   ...
//!   │ Close ────────────▶│ StopHandle::stop (optional) ─▶│
//!   │                    │◀── HandlerEnded, or HandlerTimedOut
//!   │◀── state ──────────│ state: Done, or TimedOut      │
//! ```
//!
//! `cargo run -p sandglass-host --example actor`

use std::convert::Infallible;
use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use kameo::actor::{Actor, ActorRef, Spawn as _};
use kameo::message::{Context as MessageContext, Message};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings, Signal,
    Signals, StopHandle,
};
use sandglass_model::{Cause, EntityRef, HandlerDeadlineExceeded};
use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq)]
enum State {
    Idle,
    Executing { progress: u32 },
    Done { action: String },
    Failed { why: String },
    TimedOut { dying_span: String },
    Closed,
}

/// What an actor of this type is spawned with.
struct Start {
    entity: EntityRef,
    host: Host,
    tools: Integration,
    /// Shows its state to others.
    state: watch::Sender<State>,
}

struct Session {
    start: Start,
    me: ActorRef<Self>,
    /// Stops the handler that the state `Executing` has started.
    handler: Option<StopHandle>,
}

/// Starts the handler.
struct ProcessToolCalls {
    budget: Duration,
}

/// The handler is at work.
struct Progress(Signal);

/// The handler has ended within its deadline, or has not started.
struct HandlerEnded(Result<Outcome, sandglass_host::Error>);

/// The deadline of the handler has passed.
struct HandlerTimedOut(Box<HandlerDeadlineExceeded>);

/// Ends the session.
struct Close;

impl Actor for Session {
    type Args = Start;
    type Error = Infallible;

    async fn on_start(start: Start, me: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(Self { start, me, handler: None })
    }
}

impl Session {
    /// Leaves `Executing`. A handler that ends in another state changes nothing.
    fn leave_executing(&mut self, to: State) {
        let is_executing = matches!(*self.start.state.borrow(), State::Executing { .. });
        if is_executing {
            self.handler = None;
            self.start.state.send_replace(to);
        }
    }
}

impl Message<ProcessToolCalls> for Session {
    type Reply = ();

    async fn handle(&mut self, message: ProcessToolCalls, _: &mut MessageContext<Self, ()>) {
        if *self.start.state.borrow() != State::Idle {
            return;
        }
        let me = self.me.clone();
        let dispatch =
            Dispatch::new(self.start.entity.clone(), "ProcessToolCalls", Context::default())
                .deadline(DispatchDeadline::after(message.budget))
                .signals(Arc::new(ToMailbox(me.clone())));
        self.handler = Some(dispatch.stop_handle());
        self.start.state.send_replace(State::Executing { progress: 0 });
        // The actor does not wait for the guest: it takes other messages meanwhile.
        let (host, tools) = (self.start.host.clone(), self.start.tools.clone());
        tokio::spawn(async move {
            let is_delivered = match host.dispatch(&tools, dispatch).await {
                Ok(Outcome::TimedOut(exceeded)) => me.tell(HandlerTimedOut(exceeded)).await.is_ok(),
                ended => me.tell(HandlerEnded(ended)).await.is_ok(),
            };
            if !is_delivered {
                tracing::warn!("the session ended before its handler");
            }
        });
    }
}

impl Message<HandlerEnded> for Session {
    type Reply = ();

    async fn handle(
        &mut self,
        HandlerEnded(ended): HandlerEnded,
        _: &mut MessageContext<Self, ()>,
    ) {
        self.leave_executing(match ended {
            Ok(Outcome::Completed(completion)) => {
                State::Done { action: completion.action.unwrap_or_default() }
            }
            Ok(other) => {
                State::Failed { why: other.error().map(|(kind, _)| kind).unwrap_or_default() }
            }
            Err(error) => State::Failed { why: error.to_string() },
        });
    }
}

impl Message<HandlerTimedOut> for Session {
    type Reply = ();

    async fn handle(
        &mut self,
        HandlerTimedOut(exceeded): HandlerTimedOut,
        _: &mut MessageContext<Self, ()>,
    ) {
        self.leave_executing(State::TimedOut { dying_span: exceeded.dying_span });
    }
}

impl Message<Progress> for Session {
    type Reply = ();

    async fn handle(&mut self, Progress(signal): Progress, _: &mut MessageContext<Self, ()>) {
        tracing::info!(kind = signal.kind(), "the handler is at work");
        self.start.state.send_modify(|state| {
            if let State::Executing { progress } = state {
                *progress += 1;
            }
        });
    }
}

impl Message<Close> for Session {
    type Reply = ();

    async fn handle(&mut self, _: Close, _: &mut MessageContext<Self, ()>) {
        if let Some(handler) = self.handler.take() {
            handler.stop(Cause::StateLeft, "the session was closed");
        }
        self.start.state.send_replace(State::Closed);
    }
}

/// Signals come on the thread of the guest, so they must not wait: a full mailbox drops them.
#[derive(Debug)]
struct ToMailbox(ActorRef<Session>);

impl Signals for ToMailbox {
    fn signal(&self, signal: Signal) {
        drop(self.0.tell(Progress(signal)).try_send());
    }
}

/// Finishes at once.
const FINISHES: &[u8] = br#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"action\":\"Finish\",\"params\":{},\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 46)) i32.const 0))"#;

/// Sends progress, and never returns.
const SPINS: &[u8] = br#"(module
    (import "env" "host_emit_progress" (func $emit (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"kind\":\"tool_started\"}")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $emit (i32.const 8) (i32.const 23))) (loop (br 0)) i32.const 0))"#;

/// A session with the module `guest`, and its state.
fn session(
    host: &Host,
    id: &str,
    guest: &[u8],
) -> Result<(ActorRef<Session>, watch::Receiver<State>), Box<dyn Error>> {
    let (state, shown) = watch::channel(State::Idle);
    let tools = host.load(guest, Manifest::named("run_tools"))?;
    let entity = EntityRef::new("Session", id)?;
    Ok((Session::spawn(Start { entity, host: host.clone(), tools, state }), shown))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::builder().settings(Settings { max_runs: 8, ..Settings::default() }).build()?;
    let is_settled = |state: &State| !matches!(state, State::Idle | State::Executing { .. });

    let (quick, mut shown) = session(&host, "quick", FINISHES)?;
    quick.tell(ProcessToolCalls { budget: Duration::from_secs(900) }).await?;
    let done = shown.wait_for(is_settled).await?.clone();
    assert_eq!(done, State::Done { action: "Finish".to_owned() });

    let (stuck, mut shown) = session(&host, "stuck", SPINS)?;
    stuck.tell(ProcessToolCalls { budget: Duration::from_millis(100) }).await?;
    let timed_out = shown.wait_for(is_settled).await?.clone();
    assert_eq!(timed_out, State::TimedOut { dying_span: "guest".to_owned() });

    let (closed, mut shown) = session(&host, "closed", SPINS)?;
    closed.tell(ProcessToolCalls { budget: Duration::from_secs(900) }).await?;
    shown.wait_for(|state| *state == State::Executing { progress: 1 }).await?;
    // The actor takes messages while its guest spins.
    closed.ask(Close).await?;
    // Waits until the handlers have ended.
    host.shutdown().await;
    assert_eq!(*shown.borrow(), State::Closed);

    writeln!(std::io::stdout(), "{done:?}\n{timed_out:?}\n{:?}", State::Closed)?;
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
