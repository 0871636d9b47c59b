//! Sends what clients and handlers request to the host that owns the entity, as `sandglass-daemon` does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandglass_cluster::Route;
use sandglass_model::{Clock as _, EntityRef, Monotonic, Partition, Position};
use sandglass_runtime::{
    ActorError, Here, OtherHosts, RemoteRequest, RemoteResponse, Request, Runtime, Signal,
    Undelivered,
};

use super::member::Command;
use super::network::{Call, Reply, SendError};
use super::process::{Host, slot_of};

/// How long to look for an owner.
const FIND_MAX: Duration = Duration::from_secs(2);
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// How often a request is repeated because its connection broke, if it can be.
const REPEATS_MAX: u32 = 3;

/// What a client requests of an entity.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    Create,
    Act(Request),
    Signal(Signal),
    Look,
}

/// What was done.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    At(Position),
    Somewhere,
    Seen(Arc<sandglass_runtime::Snapshot>),
}

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// Nothing was done.
    Refused(ActorError),
    /// No owner was found. Nothing was done.
    Moving,
    /// It may have been done.
    Unknown,
}

impl Wish {
    /// Whether it can be sent again although it may have been done.
    pub(crate) const fn can_be_repeated(&self) -> bool {
        match self {
            Self::Act(request) => request.idempotency_key.is_some(),
            Self::Look => true,
            Self::Create | Self::Signal(_) => false,
        }
    }

    pub(crate) async fn carry_out(
        self,
        runtime: &Runtime,
        entity: &EntityRef,
    ) -> Result<Done, ActorError> {
        match self {
            Self::Create => runtime.create(entity.clone()).await.map(|_| Done::Somewhere),
            Self::Act(request) => {
                runtime.request(entity, request).await.map(|accepted| Done::At(accepted.position))
            }
            Self::Signal(signal) => runtime.signal(entity, signal).await.map(|()| Done::Somewhere),
            Self::Look => runtime.entity(entity).await.map(Done::Seen),
        }
    }
}

/// What one attempt led to.
enum Attempt {
    Over(Reply),
    /// Nothing was done there.
    NotThere,
    Broken,
}

/// The time in which an owner must be found.
struct Search {
    until: Monotonic,
    pause: Duration,
}

impl Search {
    fn new(host: &Host, most: Duration) -> Self {
        Self { until: host.clock.now().after(most), pause: PAUSES.0 }
    }

    fn pause(&mut self, host: &Host) -> Option<Duration> {
        let left = self.until.since(host.clock.now());
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(PAUSES.1);
        (!left.is_zero()).then_some(pause)
    }
}

impl Host {
    /// Sends the request of a client to the owner of the entity.
    pub(crate) async fn forward(
        self: &Arc<Self>,
        entity: &EntityRef,
        wish: Wish,
    ) -> Result<Done, Failed> {
        let can_be_repeated = wish.can_be_repeated();
        let serve = || async {
            let Some(runtime) = self.runtime() else { return Attempt::NotThere };
            match wish.clone().carry_out(&runtime, entity).await {
                Err(ActorError::Elsewhere(_)) => Attempt::NotThere,
                done => Attempt::Over(Reply::Done(done)),
            }
        };
        let call = || Call::Forward(entity.clone(), wish.clone());
        match self.travel(entity, can_be_repeated, FIND_MAX, call, serve).await {
            Ok(Reply::Done(Ok(done))) => Ok(done),
            // It may have been decided, and be on its way to the log.
            Ok(Reply::Done(Err(ActorError::Closed | ActorError::Fenced { .. }))) => {
                Err(Failed::Unknown)
            }
            Ok(Reply::Done(Err(error))) => Err(Failed::Refused(error)),
            Ok(_) => Err(Failed::Unknown),
            Err(failed) => Err(failed),
        }
    }

    async fn travel<F: Future<Output = Attempt>>(
        self: &Arc<Self>,
        entity: &EntityRef,
        can_be_repeated: bool,
        find_max: Duration,
        call: impl Fn() -> Call,
        serve: impl Fn() -> F,
    ) -> Result<Reply, Failed> {
        let partition = Partition::of(entity);
        let mut search = Search::new(self, find_max);
        let (mut repeats, mut may_be_done) = (0, false);
        loop {
            // Before the route is read, so that no change is missed.
            let changed = self.known_changed();
            let routes = self.known().routes.clone();
            let is_served = self.runtime().is_some_and(|runtime| runtime.serves(partition));
            let attempt = match routes.route(partition, is_served) {
                Route::Here => serve().await,
                Route::At { host, url, .. } => match slot_of(&url) {
                    None => Attempt::NotThere,
                    Some(slot) => match self.call(slot, call()).await {
                        Ok(Reply::NotOwner) | Err(SendError::Unreachable) => Attempt::NotThere,
                        Ok(reply) => Attempt::Over(reply),
                        Err(SendError::Refused) => {
                            self.command(Command::Suspect(host));
                            Attempt::NotThere
                        }
                        Err(SendError::Broken) => Attempt::Broken,
                    },
                },
                Route::Moving => Attempt::NotThere,
            };
            match attempt {
                // The refusal may be of the second attempt, and the first one still on its way.
                Attempt::Over(Reply::Done(Err(_))) if may_be_done => return Err(Failed::Unknown),
                Attempt::Over(reply) => return Ok(reply),
                Attempt::Broken if can_be_repeated && repeats < REPEATS_MAX => {
                    repeats += 1;
                    may_be_done = true;
                    search = Search::new(self, find_max);
                }
                Attempt::Broken => return Err(Failed::Unknown),
                Attempt::NotThere => {}
            }
            let Some(pause) = search.pause(self) else {
                return Err(if may_be_done { Failed::Unknown } else { Failed::Moving });
            };
            tokio::select! {
                biased;
                () = self.pause_for(pause) => {}
                () = changed => {}
            }
        }
    }
}

/// The way of the runtime of a host to the others.
pub(crate) struct Delivery(pub(crate) Arc<Host>);

impl OtherHosts for Delivery {
    fn send<'a>(
        &'a self,
        here: &'a Here,
        request: &'a RemoteRequest,
    ) -> BoxFuture<'a, Result<RemoteResponse, Undelivered>> {
        self.deliver(here, request).boxed()
    }
}

impl Delivery {
    async fn deliver(
        &self,
        here: &Here,
        request: &RemoteRequest,
    ) -> Result<RemoteResponse, Undelivered> {
        let host = &self.0;
        let begun = host.clock.now();
        // The asker has less time with each attempt.
        let present = || request.clone().after(host.clock.now().since(begun));
        let serve = || async {
            match here.deliver(present()).await {
                Ok(response) => Attempt::Over(Reply::Delivered(Box::new(response))),
                Err(ActorError::Elsewhere(_)) => Attempt::NotThere,
                Err(error) => Attempt::Over(Reply::Refused(error.to_string())),
            }
        };
        let find_max = if request.comes_again() { Duration::ZERO } else { FIND_MAX };
        let call = || Call::Deliver(Box::new(present()));
        let can_be_repeated = request.is_repeatable();
        match host.travel(request.target(), can_be_repeated, find_max, call, serve).await {
            Ok(Reply::Delivered(response)) => Ok(*response),
            Ok(Reply::Refused(why)) => Err(Undelivered::Refused(why)),
            Err(Failed::Moving | Failed::Refused(_)) => Err(Undelivered::Moving),
            Ok(_) | Err(Failed::Unknown) => Err(Undelivered::Unknown),
        }
    }
}
