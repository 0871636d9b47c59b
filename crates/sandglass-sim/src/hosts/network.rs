//! The network between hosts: requests and responses take time, are lost, and break, and one direction can
//! be cut alone.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{EntityRef, HostId, Partition};
use sandglass_runtime::{ActorError, RemoteRequest, RemoteResponse};
use tokio::sync::oneshot;

use super::forwarding::{Done, Wish};
use super::member::Command;
use super::process::Host;
use super::sim::{EndOf, Sim};
use super::timeline::{Life, MS, SECOND};
use crate::scene::lock;

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How often a request checks its connection.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How often a connection may be silent in a row before it counts as broken.
const SILENT_MAX: u32 = 6;
/// How long a request may take at most.
const PATIENCE: Duration = Duration::from_secs(35);

/// What a host requests from another one.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    WhoAmI,
    Nudge(HostId, Vec<(Partition, u64)>),
    Deliver(Box<RemoteRequest>),
    Forward(EntityRef, Wish),
}

/// What it responds.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Process(HostId),
    Noted,
    /// It does not own the entity. Nothing was done.
    NotOwner,
    Delivered(Box<RemoteResponse>),
    /// It owns the entity, and refuses the request of a handler.
    Refused(String),
    Done(Result<Done, ActorError>),
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// No process listens there. Nothing was done.
    Refused,
    /// There is no connection. Nothing was done.
    Unreachable,
    /// It may have been done.
    Broken,
}

/// Ends the receiver's work if the sender goes away.
struct Open {
    sim: Arc<Sim>,
    from: usize,
    to: usize,
    number: u64,
    is_over: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (number, from, to) = (self.number, self.from, self.to);
        self.sim.at_end(EndOf::Call, number, move |sim| {
            // Without a connection, the receiver learns it from the silence.
            let late = if sim.is_cut(from, to) { 3 * SECOND } else { MS };
            sim.after(late, None, move |sim| {
                let handle = sim.network().calls.remove(&number);
                let life = sim.host(to).map(|host| host.life);
                if let Some(handle) = handle {
                    sim.after(0, life, move |_| handle.abort());
                }
            });
        });
    }
}

impl Host {
    /// Sends a request to the process in a slot.
    ///
    /// # Errors
    /// There is no response.
    pub(crate) async fn call(self: &Arc<Self>, to: usize, call: Call) -> Result<Reply, SendError> {
        let (sim, from) = (&self.sim, self.life.slot);
        let (there, back) = (sim.is_cut(from, to), sim.is_cut(to, from));
        if (there || back) && sim.delays.per_mille(500) {
            self.pause_for(CONNECT_LIMIT).await;
            return Err(SendError::Unreachable);
        }
        let number = {
            let mut network = sim.network();
            network.next_call += 1;
            network.next_call
        };
        let delay = || sim.delays.within(100..=2_000) * MS / 1_000;
        let (go, come) = (delay(), delay());
        let breaks = !sim.is_calm() && sim.delays.per_mille(sim.plan.broken_requests);
        let (reply, answer) = oneshot::channel();
        // Kept here, because the receiver, if it is killed, drops its requests in an order that depends on what
        // else was started in this program, and that would wake their senders.
        let reply = Arc::new(std::sync::Mutex::new(Some(reply)));
        let receiver = Arc::new(std::sync::Mutex::new(None));
        let mut open = Open { sim: Arc::clone(sim), from, to, number, is_over: false };
        if !there {
            let (me, receiver, reply) = (self.life, Arc::clone(&receiver), Arc::clone(&reply));
            let arrival = Arrival { number, me, to, come, breaks, call, reply };
            sim.after(go, None, move |sim| *lock(&receiver) = arrival.arrive(sim));
        }
        let answer = async {
            match answer.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.watch(to, &receiver) => Err(SendError::Broken),
            () = self.pause_for(PATIENCE) => Err(SendError::Broken),
        };
        open.is_over = result.is_ok();
        result
    }

    /// Waits until a connection is broken.
    async fn watch(&self, to: usize, receiver: &std::sync::Mutex<Option<Life>>) {
        let (sim, from) = (&self.sim, self.life.slot);
        let mut silent = 0;
        loop {
            self.pause_for(CHECK_EVERY).await;
            let is_cut = sim.is_cut(from, to) || sim.is_cut(to, from);
            let has_ended = lock(receiver).is_some_and(|life| !sim.is_alive(life));
            if has_ended && !sim.is_cut(to, from) {
                return;
            }
            silent = if is_cut || has_ended || sim.is_paused(to) { silent + 1 } else { 0 };
            if silent >= SILENT_MAX {
                return;
            }
        }
    }

    /// Does what another host requests.
    async fn serve(self: &Arc<Self>, call: Call) -> Reply {
        match call {
            Call::WhoAmI => Reply::Process(self.id()),
            Call::Nudge(host, owned) => {
                self.command(Command::Owned(host, owned));
                Reply::Noted
            }
            Call::Deliver(request) => {
                let Some(runtime) = self.runtime() else { return Reply::NotOwner };
                match runtime.deliver(*request).await {
                    Ok(response) => Reply::Delivered(Box::new(response)),
                    Err(ActorError::Elsewhere(_)) => Reply::NotOwner,
                    Err(error) => Reply::Refused(error.to_string()),
                }
            }
            Call::Forward(entity, wish) => {
                let Some(runtime) = self.runtime() else { return Reply::NotOwner };
                if !runtime.serves(Partition::of(&entity)) {
                    return Reply::NotOwner;
                }
                match wish.carry_out(&runtime, &entity).await {
                    Err(ActorError::Elsewhere(_)) => Reply::NotOwner,
                    done => Reply::Done(done),
                }
            }
        }
    }
}

/// A request that arrives at a machine.
struct Arrival {
    number: u64,
    me: Life,
    to: usize,
    come: u64,
    breaks: bool,
    call: Call,
    reply: Arc<std::sync::Mutex<Option<Answer>>>,
}

/// Where the response to a request goes.
type Answer = oneshot::Sender<Result<Reply, SendError>>;

impl Arrival {
    /// Hands the request to the process, which is returned.
    fn arrive(self, sim: &Arc<Sim>) -> Option<Life> {
        let Self { number, me, to, come, breaks, call, reply } = self;
        let is_cut = move |sim: &Sim| sim.is_cut(to, me.slot);
        let Some(host) = sim.host(to) else {
            if !is_cut(sim) {
                sim.after(come, Some(me), move |_| answer(&reply, Err(SendError::Refused)));
            }
            return None;
        };
        if matches!(call, Call::Deliver(_) | Call::Forward(..)) {
            sim.ledger().hosts.forwards += 1;
        }
        let life = host.life;
        if breaks {
            let reply = Arc::clone(&reply);
            let when = sim.delays.within(0..=200) * MS;
            sim.after(when, Some(me), move |_| answer(&reply, Err(SendError::Broken)));
        }
        sim.after(0, Some(life), move |sim| {
            let serving = Arc::clone(&host);
            let task = host.threads.spawn(async move {
                let done = serving.serve(call).await;
                let sim = &serving.sim;
                sim.network().calls.remove(&number);
                if !is_cut(sim) {
                    sim.after(come, Some(me), move |_| answer(&reply, Ok(done)));
                }
            });
            sim.network().calls.insert(number, task.abort_handle());
        });
        Some(life)
    }
}

/// Sends the first response to a request.
fn answer(reply: &std::sync::Mutex<Option<Answer>>, result: Result<Reply, SendError>) {
    let reply = lock(reply).take();
    drop(reply.map(|reply| reply.send(result)));
}
