//! Recordings. Small ones are written by the append that names them. Larger ones are stored before it, as
//! bytes by their hash, so that they hold no lock, and removed if no append did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_journal::{Error, Recording};
use sandglass_model::{Clock, Monotonic, SystemClock};
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use crate::link::Parameter;
use crate::reader::Reader;

/// The SHA-256 of a recording.
pub(crate) type Hash = [u8; 32];

/// The size of a piece of a recording, in bytes: the server handles a row of this size easily.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Up to this size, in bytes, a recording is written by the append: a statement of its own costs more
/// than the lock that is held meanwhile.
const INLINE_MAX_BYTES: usize = 64 << 10;

/// Most recordings that one call of the sweep examines.
const SWEPT_MAX: i64 = 1_000;

/// Most recordings without a record that are remembered.
const ORPHANS_MAX: usize = 100_000;

/// The recordings that appends of this process are about to name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uploads(Arc<Mutex<BTreeMap<Hash, usize>>>);

/// A recording that is about to be named. It is not swept until this is dropped.
#[derive(Debug)]
struct Upload {
    hash: Hash,
    uploads: Uploads,
}

/// A recording as an append names it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) hash: Hash,
    /// If it is stored already.
    upload: Option<Upload>,
}

impl Named {
    /// Whether the append has to write its bytes, too.
    pub(crate) fn is_inline(&self) -> bool {
        self.upload.is_none()
    }
}

impl Uploads {
    fn begin(&self, hash: Hash) -> Upload {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(hash).or_default() += 1;
        Upload { hash, uploads: self.clone() }
    }

    fn contains(&self, hash: &Hash) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(hash)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut uploads = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = uploads.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                uploads.remove(&self.hash);
            }
        }
    }
}

/// Prepares recordings for the append that names them: stores those that are not small. If this fails,
/// nothing of them is in the journal.
pub(crate) async fn name(
    reader: &Reader,
    uploads: &Uploads,
    recordings: &[Recording],
) -> Result<Vec<Named>, Error> {
    let mut named = Vec::with_capacity(recordings.len());
    for recording in recordings {
        let hash: Hash = Sha256::digest(&recording.body).into();
        let upload = if is_small(recording) {
            None
        } else {
            Some(put(reader, uploads, recording, hash).await?)
        };
        named.push(Named { hash, upload });
    }
    Ok(named)
}

/// Whether a recording is written by the append that names it.
pub(crate) fn is_small(recording: &Recording) -> bool {
    recording.body.len() <= INLINE_MAX_BYTES
}

async fn put(
    reader: &Reader,
    uploads: &Uploads,
    recording: &Recording,
    hash: Hash,
) -> Result<Upload, Error> {
    let upload = uploads.begin(hash);
    let pieces: Vec<&[u8]> = recording.body.chunks(CHUNK_BYTES).collect();
    let chunks: Vec<i32> = (0..).take(pieces.len()).collect();
    let sql = "INSERT INTO sandglass.blobs (hash, chunk, puts, bytes) \
               SELECT $1, n.chunk, 1, n.bytes FROM unnest($2::integer[], $3::bytea[]) AS n(chunk, bytes) \
               ON CONFLICT (hash, chunk) DO UPDATE SET puts = blobs.puts + 1, bytes = excluded.bytes";
    let bytes = &hash[..];
    let parameters: [Parameter<'_>; 3] =
        [(&bytes, Type::BYTEA), (&chunks, Type::INT4_ARRAY), (&pieces, Type::BYTEA_ARRAY)];
    reader.query(sql, &parameters).await?;
    Ok(upload)
}

/// Removes recordings that no record names: those that were found without one some time ago already,
/// and were not stored again since.
#[derive(Debug)]
pub(crate) struct Sweep {
    clock: SystemClock,
    /// How long they are kept.
    kept: Duration,
    /// Where the next call continues.
    after: Vec<u8>,
    /// Recordings without a record, how often they were stored, and when they were found.
    orphans: BTreeMap<Hash, (i64, Monotonic)>,
}

impl Sweep {
    pub(crate) fn new(kept: Duration) -> Self {
        Self { clock: SystemClock::new(), kept, after: Vec::new(), orphans: BTreeMap::new() }
    }

    /// Whether the last call came to the end of all recordings.
    pub(crate) fn is_at_end(&self) -> bool {
        self.after.is_empty()
    }

    /// Examines some recordings, and returns how many were removed.
    pub(crate) async fn next(&mut self, reader: &Reader, uploads: &Uploads) -> Result<u64, Error> {
        let now = self.clock.now();
        let sql = "SELECT b.hash, b.puts, EXISTS (SELECT 1 FROM sandglass.recordings r \
                   WHERE r.hash = b.hash AND r.bytes IS NULL) FROM sandglass.blobs b WHERE b.chunk = 0 AND b.hash > $1 \
                   ORDER BY b.hash LIMIT $2";
        let parameters: [Parameter<'_>; 2] = [(&self.after, Type::BYTEA), (&SWEPT_MAX, Type::INT8)];
        let rows = reader.query(sql, &parameters).await?;
        let (mut hashes, mut puts) = (Vec::new(), Vec::new());
        self.after = Vec::new();
        for row in &rows {
            let Ok(bytes) = row.try_get::<_, &[u8]>(0) else { continue };
            let Ok(hash) = Hash::try_from(bytes) else { continue };
            self.after = bytes.to_vec();
            let (count, is_named) =
                (row.try_get(1).unwrap_or_default(), row.try_get(2).unwrap_or(true));
            if is_named || uploads.contains(&hash) {
                self.orphans.remove(&hash);
                continue;
            }
            if self.orphans.len() >= ORPHANS_MAX && !self.orphans.contains_key(&hash) {
                continue;
            }
            match self.orphans.get(&hash).copied() {
                Some((seen, since)) if seen == count => {
                    if now.since(since) >= self.kept {
                        self.orphans.remove(&hash);
                        hashes.push(bytes);
                        puts.push(count);
                    }
                }
                _ => drop(self.orphans.insert(hash, (count, now))),
            }
        }
        if rows.len() < usize::try_from(SWEPT_MAX).unwrap_or(usize::MAX) {
            self.after = Vec::new();
        }
        if hashes.is_empty() {
            return Ok(0);
        }
        let sql = "DELETE FROM sandglass.blobs b USING unnest($1::bytea[], $2::bigint[]) AS n(hash, puts) \
                   WHERE b.hash = n.hash AND b.puts = n.puts AND NOT EXISTS \
                   (SELECT 1 FROM sandglass.recordings r WHERE r.hash = b.hash AND r.bytes IS NULL) RETURNING b.chunk";
        let parameters: [Parameter<'_>; 2] =
            [(&hashes, Type::BYTEA_ARRAY), (&puts, Type::INT8_ARRAY)];
        let removed = reader.query(sql, &parameters).await?;
        let whole =
            removed.iter().filter(|row| row.try_get::<_, i32>(0).is_ok_and(|chunk| chunk == 0));
        Ok(u64::try_from(whole.count()).unwrap_or(u64::MAX))
    }
}
