//! An entity's place while it is awake: how others reach its task, and what it shows
//! them. A seat is given up when the entity falls asleep, and never used again.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::answering::refuse;
use super::{MAILBOX_MAX, Message, Stops};
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::watch;

/// How others reach an entity's task. It stays in the table, whose lock is held
/// whenever it is used: so nobody can ask an entity that has just fallen asleep.
pub(crate) struct Handle {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) stops: Stops,
    view: Arc<watch::Sender<View>>,
}

impl Handle {
    /// What the entity shows from now on. It stays awake while somebody watches.
    pub(crate) fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// The entity, where it is known by now.
    pub(crate) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        match &*self.view.borrow() {
            View::Live(snapshot) | View::Last(snapshot) => Some(Arc::clone(snapshot)),
            View::New | View::Waking | View::Gone(_) => None,
        }
    }

    /// Whether its creation isn't durable yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(*self.view.borrow(), View::New)
    }
}

/// What an entity shows.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// Its creation isn't durable yet.
    New,
    /// It is being read from the journal.
    Waking,
    /// As it is now.
    Live(Arc<Snapshot>),
    /// As it was when nothing could change any more.
    Last(Arc<Snapshot>),
    /// It can't be shown.
    Gone(ActorError),
}

/// The task's ends of what a [`Handle`] holds.
pub(crate) struct Seat {
    pub(super) mailbox: mpsc::Receiver<Message>,
    pub(super) shown: Shown,
    pub(super) stops: Stops,
    pub(super) closing: watch::Receiver<bool>,
}

/// A place for an entity's task, and the way to reach it.
pub(crate) fn seat(view: View, closing: watch::Receiver<bool>) -> (Handle, Seat) {
    let (sender, mailbox) = mpsc::channel(MAILBOX_MAX);
    let view = Arc::new(watch::Sender::new(view));
    let stops = Stops::default();
    let shown = Shown(Arc::clone(&view));
    let handle = Handle { mailbox: sender, stops: stops.clone(), view };
    (handle, Seat { mailbox, shown, stops, closing })
}

impl Seat {
    /// Answers all that was asked with `error`. Nobody can ask any more.
    pub(crate) fn refuse(mut self, error: &ActorError) {
        self.shown.0.send_replace(View::Gone(error.clone()));
        refuse_waiting(&mut self.mailbox, error);
    }
}

pub(super) fn refuse_waiting(mailbox: &mut mpsc::Receiver<Message>, error: &ActorError) {
    while let Ok(message) = mailbox.try_recv() {
        refuse(message, error.clone());
    }
}

/// What an entity's task shows; once it is dropped, nothing changes any more.
pub(crate) struct Shown(Arc<watch::Sender<View>>);

impl Shown {
    pub(super) fn show(&self, snapshot: Snapshot) {
        self.0.send_replace(View::Live(Arc::new(snapshot)));
    }

    /// Nothing changes any more, so that nobody need wait for it.
    pub(super) fn finish(&self) {
        self.0.send_if_modified(|view| {
            *view = match &*view {
                View::Live(snapshot) => View::Last(Arc::clone(snapshot)),
                View::New | View::Waking => View::Gone(ActorError::Closed),
                View::Last(_) | View::Gone(_) => return false,
            };
            true
        });
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Waits until nobody watches.
    pub(super) async fn unwatched(&self) {
        self.0.closed().await;
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.finish();
    }
}
