//! The journal in memory: for tests and for embedders that keep nothing. It
//! answers at once, on the caller's thread, and so works in virtual time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandglass_model::{EntityRef, Position, Record, Sequence};

use crate::{Batch, Entry, Error, Health, Journal, PAGE_MAX_ENTRIES, Page, Pending, Positions};

/// A journal that ends with its process, and grows until then.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Record>,
    heads: BTreeMap<EntityRef, Sequence>,
    failing: Option<String>,
    closed: bool,
}

impl MemoryJournal {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on every append fails with [`Error::Unavailable`], as on a full
    /// disk, or works again.
    pub fn set_failing(&self, failing: Option<String>) {
        self.lock().failing = failing;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is made whole before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, from: Position, limit: usize, of: Option<&EntityRef>) -> Result<Page, Error> {
        let inner = self.lock();
        if inner.closed {
            return Err(Error::Closed);
        }
        let skipped = usize::try_from(from.0.saturating_sub(1)).unwrap_or(usize::MAX);
        let limit = limit.clamp(1, PAGE_MAX_ENTRIES);
        let mut found = inner
            .records
            .iter()
            .skip(skipped)
            .filter(|record| of.is_none() || record.entity.as_ref() == of);
        let entries = found.by_ref().take(limit).cloned().map(Entry::Record).collect();
        Ok(Page { entries, next: found.next().map(|record| record.position) })
    }
}

impl Inner {
    fn append(&mut self, batch: Batch) -> Result<Positions, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        // Only for its bounds, so that both stores refuse the same.
        batch.lines()?;
        if let Some(what) = &self.failing {
            return Err(Error::Unavailable { what: what.clone() });
        }
        let Batch { entity, at, .. } = &batch;
        batch.admit(entity.as_ref().and_then(|entity| self.heads.get(entity).copied()))?;
        let (entity, at) = (entity.clone(), *at);
        let first = self.last().0 + 1;
        let places = (first..).map(Position);
        self.records.extend(batch.records.into_iter().zip(places).map(
            |((sequence, event), position)| Record {
                position,
                at,
                entity: entity.clone(),
                sequence,
                event,
            },
        ));
        if let (Some(entity), Some(record)) = (entity, self.records.last()) {
            self.heads.insert(entity, record.sequence);
        }
        Ok(Positions { first: Position(first), last: self.last() })
    }

    fn last(&self) -> Position {
        self.records.last().map(|record| record.position).unwrap_or_default()
    }
}

impl Journal for MemoryJournal {
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move { self.lock().append(batch) })
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move { self.page(from, limit, None) })
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move { self.page(from, limit, Some(&entity)) })
    }

    fn last(&self) -> Pending<'_, Result<Position, Error>> {
        Box::pin(async move {
            let inner = self.lock();
            if inner.closed { Err(Error::Closed) } else { Ok(inner.last()) }
        })
    }

    fn health(&self) -> Health {
        let inner = self.lock();
        match &inner.failing {
            _ if inner.closed => Health::Closed,
            Some(what) => Health::Failing { what: what.clone() },
            None => Health::Working,
        }
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move { self.lock().closed = true })
    }
}
