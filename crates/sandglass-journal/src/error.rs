//! The errors of journals, by what the caller does next.

use std::path::PathBuf;

use sandglass_model::EntityRef;

use crate::{Expected, LastRecord};

/// Why a journal could not do what was requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The last record of the entity is not the one that the appender expects: another writer has
    /// appended since. Read the entity again.
    #[error("{entity} {}, and the batch expects {expected}", found_text(.found))]
    Conflict {
        /// The entity.
        entity: EntityRef,
        /// What the batch expects.
        expected: Expected,
        /// Its last record; `None` if it does not exist.
        found: Option<LastRecord>,
    },
    /// The batch is invalid: a defect of the appender.
    #[error("batch is not valid: {what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// The batch, or one of its records, is larger than a journal accepts.
    #[error("{what} takes {size}, and a journal takes at most {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is, in bytes or records.
        size: usize,
        /// How large it may be, in the same unit.
        limit: usize,
    },
    /// The disk is full, the file is in use, or I/O fails: try again later.
    #[error("{what}")]
    Unavailable {
        /// What failed, and what to do.
        what: String,
    },
    /// The journal contains something that cannot have been written: run `sandglass journal check`,
    /// and restore it from a backup.
    #[error("{}: {what}", damaged_text(.place))]
    Damaged {
        /// The place in the journal.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// There is no journal at that path.
    #[error("`{}` is no journal: {what}", .path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        what: String,
    },
    /// A newer Sandglass wrote it.
    #[error(
        "journal `{}` has format {found}, and this version reads up to {supported}: \
         use the version that wrote it, or a newer one", .path.display()
    )]
    Newer {
        /// The path.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version knows.
        supported: u32,
    },
    /// Another host owns the journal now. Batches that are refused with this are not in it. Stop:
    /// this process appends nothing to it again.
    #[error("{what}")]
    Disowned {
        /// Who owns it, and what to do.
        what: String,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// A place that is quoted is a file: all of it may be damaged.
fn damaged_text(place: &str) -> String {
    if place.starts_with('`') {
        format!("journal {place} is damaged")
    } else {
        format!("journal is damaged at {place}")
    }
}

fn found_text(found: &Option<LastRecord>) -> String {
    match found {
        None => "does not exist".to_owned(),
        Some(LastRecord { position, sequence }) => {
            format!("has its last record at position {position} (sequence {sequence})")
        }
    }
}
