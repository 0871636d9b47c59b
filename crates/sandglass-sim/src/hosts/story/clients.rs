//! Clients: they send requests to any host, repeat those that have a key, and remember the answers.

use std::sync::Arc;

use sandglass_model::{EntityRef, Object};
use sandglass_runtime::{Request, Signal};
use serde_json::json;

use crate::hosts::forwarding::{Done, Failed, Wish};
use crate::hosts::ledger::{Answer, Kind};
use crate::hosts::sim::{EndOf, Sim};
use crate::hosts::spec::{ACTIONS, TYPE};
use crate::hosts::timeline::MS;

/// How often a request with a key is sent, by its client.
const ATTEMPTS: u32 = 4;
/// How many names there are for spawned entities.
const SPAWNED: usize = 12;

/// A request of a client that has no answer yet. If it is dropped, the connection to the host has broken.
struct ClientCall {
    sim: Arc<Sim>,
    id: u64,
    entity: EntityRef,
    wish: Wish,
    attempts_left: u32,
    /// Whether an attempt has an unknown outcome.
    may_be_done: bool,
    is_over: bool,
}

/// A client requests something.
pub(super) fn act(sim: &Arc<Sim>) {
    let dice = &sim.clients;
    let names = sim.story().names.clone();
    if names.is_empty() || (names.len() < sim.plan.entities && dice.per_mille(350)) {
        return create(sim, &names);
    }
    let entity = dice.pick(&names).clone();
    let (id, params) = sim.ledger().requests.next(Kind::Client);
    let wish = match dice.below(12) {
        0 => {
            let payload = json!({ "request": id });
            Wish::Signal(Signal { name: "notice".to_owned(), from: None, payload })
        }
        _ => Wish::Act(draw_request(sim, id, params)),
    };
    let is_doubled = wish.can_be_repeated() && dice.per_mille(200);
    let attempts_left = if wish.can_be_repeated() { ATTEMPTS } else { 1 };
    let call = || ClientCall {
        sim: Arc::clone(sim),
        id,
        entity: entity.clone(),
        wish: wish.clone(),
        attempts_left,
        // Of two requests at once, one may be refused because the other was done.
        may_be_done: is_doubled,
        is_over: false,
    };
    call().send();
    if is_doubled {
        call().send();
    }
}

fn draw_request(sim: &Arc<Sim>, id: u64, mut params: Object) -> Request {
    let dice = &sim.clients;
    let action = *dice.pick(&ACTIONS);
    if action == "Breed" {
        let name = format!("s{}", dice.below(SPAWNED));
        params.insert("text".to_owned(), json!(name));
        if let Ok(name) = EntityRef::new(TYPE, name) {
            let mut story = sim.story();
            if !story.names.contains(&name) {
                story.names.push(name);
            }
        }
    }
    let request = Request::new(action).params(params);
    match format!("key-{id}").parse() {
        Ok(key) if dice.per_mille(500) => request.idempotency_key(key),
        _ => request,
    }
}

fn create(sim: &Arc<Sim>, names: &[EntityRef]) {
    let Ok(name) = EntityRef::new(TYPE, format!("e{}", names.len())) else { return };
    sim.story().names.push(name.clone());
    send(sim, move |host| async move {
        // It may be known only later, or never, that it was created.
        let _ = host.forward(&name, Wish::Create).await;
    });
}

/// Has a task run on any host.
fn send<F: Future<Output = ()> + Send + 'static>(
    sim: &Arc<Sim>,
    work: impl FnOnce(Arc<crate::hosts::process::Host>) -> F + Send + 'static,
) {
    let hosts = sim.hosts();
    if hosts.is_empty() {
        return;
    }
    let host = Arc::clone(sim.clients.pick(&hosts));
    sim.after(0, Some(host.life), move |_| {
        let threads = host.threads.clone();
        drop(threads.spawn(work(host)));
    });
}

impl ClientCall {
    fn send(mut self) {
        self.attempts_left -= 1;
        let sim = Arc::clone(&self.sim);
        send(&sim, move |host| async move {
            let result = host.forward(&self.entity, self.wish.clone()).await;
            self.finish(result);
        });
    }

    fn finish(mut self, result: Result<Done, Failed>) {
        if let Err(Failed::Refused(error)) = &result {
            let (id, sim) = (self.id, &self.sim);
            sim.ledger().add_line(|| format!("      request {id}: {error}"));
        }
        let answer = match result {
            Ok(Done::At(position)) => Answer::Accepted(Some(position)),
            Ok(_) => Answer::Accepted(None),
            // The connection broke; dropping this sends it again.
            Err(Failed::Unknown) => return,
            Err(Failed::Moving | Failed::Refused(_)) if self.may_be_done => Answer::Unknown,
            Err(Failed::Moving | Failed::Refused(_)) => Answer::Refused,
        };
        self.is_over = true;
        let (id, entity) = (self.id, &self.entity);
        let mut ledger = self.sim.ledger();
        ledger.add_line(|| format!("      request {id} for {entity}: {answer:?}"));
        ledger.note_answer(id, answer);
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        if self.is_over || self.sim.story().is_over {
            return;
        }
        let id = self.id;
        // Two requests with one key have the same id.
        let number = id * u64::from(ATTEMPTS + 1) + u64::from(self.attempts_left);
        if self.attempts_left == 0 {
            let note = move |sim: &Arc<Sim>| sim.ledger().note_answer(id, Answer::Unknown);
            return self.sim.at_end(EndOf::ClientCall, number, note);
        }
        let again = Self {
            sim: Arc::clone(&self.sim),
            id: self.id,
            entity: self.entity.clone(),
            wish: self.wish.clone(),
            attempts_left: self.attempts_left,
            may_be_done: true,
            is_over: false,
        };
        self.sim.at_end(EndOf::ClientCall, number, move |sim| {
            sim.after(300 * MS, None, move |_| again.send());
        });
    }
}

/// Looks at each entity, and compares what its host shows with the log.
pub(super) fn look_at_all(sim: &Arc<Sim>) {
    let names: Vec<EntityRef> =
        sim.ledger().entities().map(|entity| entity.entity.clone()).collect();
    sim.story().looks = names.len();
    for name in names {
        send(sim, move |host| async move {
            let seen = host.forward(&name, Wish::Look).await;
            let sim = &host.sim;
            let mut ledger = sim.ledger();
            match seen {
                Ok(Done::Seen(snapshot)) => {
                    if crate::hosts::ledger::differs(ledger.entity(&name), &snapshot) {
                        let what = format!("{} shows {name} otherwise than its log", host.life);
                        ledger.report(crate::invariant::Invariant::StateIsFold, what);
                    }
                }
                other => {
                    let what = format!("{} cannot show {name}: {other:?}", host.life);
                    ledger.report(crate::invariant::Invariant::NobodyStuck, what);
                }
            }
            drop(ledger);
            sim.story().looks -= 1;
        });
    }
}
