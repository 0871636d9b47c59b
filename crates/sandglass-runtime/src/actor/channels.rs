//! The channels between an entity's task and all others while it is awake: mailbox, stops, and what
//! it shows. They are replaced when the entity wakes again.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::messages::refuse;
use super::{MAILBOX_MAX, Message, Stops};
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::watch;

/// How others reach an entity's task. It is used under the lock of the table only, so that no
/// message is sent to an entity that has just fallen asleep.
pub(crate) struct Handle {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) stops: Stops,
    view: Arc<watch::Sender<View>>,
}

impl Handle {
    /// Watches the entity from now on, which keeps it awake.
    pub(crate) fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// The snapshot of the entity, if there is one by now.
    pub(crate) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        match &*self.view.borrow() {
            View::Live(snapshot) | View::Last(snapshot) => Some(Arc::clone(snapshot)),
            View::New | View::Waking | View::Gone(_) => None,
        }
    }

    /// Whether it is being read from the journal, which may not have it.
    pub(crate) fn is_waking(&self) -> bool {
        matches!(*self.view.borrow(), View::Waking)
    }
}

/// What an entity shows.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// Its creation is not durable yet.
    New,
    /// It is being read from the journal.
    Waking,
    /// As it is now.
    Live(Arc<Snapshot>),
    /// As it was when nothing could change any more.
    Last(Arc<Snapshot>),
    /// It cannot be shown.
    Gone(ActorError),
}

/// The task's ends of the channels.
pub(crate) struct Channels {
    pub(super) mailbox: mpsc::Receiver<Message>,
    pub(super) shown: Shown,
    pub(super) stops: Stops,
    pub(super) closing: watch::Receiver<bool>,
}

/// The channels of one entity.
pub(crate) fn channels(view: View, closing: watch::Receiver<bool>) -> (Handle, Channels) {
    let (sender, mailbox) = mpsc::channel(MAILBOX_MAX);
    let view = Arc::new(watch::Sender::new(view));
    let stops = Stops::default();
    let shown = Shown(Arc::clone(&view));
    let handle = Handle { mailbox: sender, stops: stops.clone(), view };
    (handle, Channels { mailbox, shown, stops, closing })
}

impl Channels {
    /// Answers all requests with `error`. No more can arrive.
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

/// What an entity's task shows. It is final once this is dropped.
pub(crate) struct Shown(Arc<watch::Sender<View>>);

impl Shown {
    pub(super) fn show(&self, snapshot: Snapshot) {
        self.0.send_replace(View::Live(Arc::new(snapshot)));
    }

    /// Nothing changes any more, so waiting for a change ends.
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

    /// Waits until it is not watched.
    pub(super) async fn unwatched(&self) {
        self.0.closed().await;
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.finish();
    }
}
