//! The channels between an entity's task and all others while it is awake: mailbox, stops, and what
//! it shows. They are replaced when the entity wakes again.

use std::sync::Arc;

use sandglass_model::EntityRef;
use tokio::sync::mpsc;

use super::messages::refuse;
use super::{MAILBOX_MAX, Message, Stops};
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::serving::Hold;
use crate::watch;

/// How others reach an entity's task. It is used under the lock of the table only, so that no
/// message is sent to an entity that has just fallen asleep.
pub(crate) struct Handle {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) stops: Stops,
    /// The index of its journal.
    pub(crate) index: usize,
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
            View::Live(snapshot) | View::Last(snapshot) | View::Moved(snapshot) => {
                Some(Arc::clone(snapshot))
            }
            View::New | View::Waking | View::Gone(_) => None,
        }
    }

    /// Whether it is being read from the journal, which may not have it.
    pub(crate) fn is_waking(&self) -> bool {
        matches!(*self.view.borrow(), View::Waking)
    }

    /// Another host may have the entity from now on.
    pub(crate) fn move_away(&self, entity: &EntityRef) {
        move_away(&self.view, entity);
    }
}

fn move_away(view: &watch::Sender<View>, entity: &EntityRef) {
    view.send_if_modified(|view| {
        *view = match &*view {
            View::Live(snapshot) | View::Last(snapshot) => View::Moved(Arc::clone(snapshot)),
            View::New | View::Waking => View::Gone(ActorError::Elsewhere(entity.clone())),
            View::Moved(_) | View::Gone(_) => return false,
        };
        true
    });
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
    /// As it was when its partition was given away or lost.
    Moved(Arc<Snapshot>),
    /// It cannot be shown.
    Gone(ActorError),
}

/// The task's ends of the channels.
pub(crate) struct Channels {
    pub(super) mailbox: mpsc::Receiver<Message>,
    pub(super) shown: Shown,
    pub(super) stops: Stops,
    pub(crate) hold: Hold,
}

/// The channels of one entity.
pub(crate) fn channels(view: View, hold: Hold) -> (Handle, Channels) {
    let (sender, mailbox) = mpsc::channel(MAILBOX_MAX);
    let view = Arc::new(watch::Sender::new(view));
    let stops = Stops::default();
    let shown = Shown(Arc::clone(&view));
    let handle = Handle { mailbox: sender, stops: stops.clone(), index: hold.index, view };
    (handle, Channels { mailbox, shown, stops, hold })
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
        self.0.send_if_modified(|view| {
            if let View::Moved(_) | View::Gone(_) = view {
                return false;
            }
            *view = View::Live(Arc::new(snapshot));
            true
        });
    }

    /// Shows an entity that was created although its partition was lost meanwhile. Its creator must not
    /// take it for one that was not created.
    pub(super) fn show_created(&self, snapshot: impl FnOnce() -> Snapshot) {
        self.0.send_if_modified(|view| {
            let View::Gone(ActorError::Elsewhere(_)) = view else { return false };
            *view = View::Moved(Arc::new(snapshot()));
            true
        });
    }

    /// Another host may have the entity from now on.
    pub(super) fn move_away(&self, entity: &EntityRef) {
        move_away(&self.0, entity);
    }

    /// Nothing changes any more, so waiting for a change ends.
    pub(super) fn finish(&self) {
        self.0.send_if_modified(|view| {
            *view = match &*view {
                View::Live(snapshot) => View::Last(Arc::clone(snapshot)),
                View::New | View::Waking => View::Gone(ActorError::Closed),
                View::Last(_) | View::Moved(_) | View::Gone(_) => return false,
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
