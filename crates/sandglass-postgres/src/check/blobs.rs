//! The bytes of large recordings: read piece by piece, and compared with their hash.

use sandglass_journal::Error;
use sandglass_model::Partition;
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use super::{CheckedPage, Flaw};
use crate::blobs::CHUNK_BYTES;
use crate::link::Parameter;
use crate::reader::Reader;
use crate::row::position;

/// Most pieces that are read at once.
const PIECES: i64 = 8;

/// How far the table was read.
#[derive(Clone, Debug)]
pub(super) struct Blobs {
    /// Behind this hash and piece.
    after: (Vec<u8>, i32),
    /// The bytes of which the last piece was.
    open: Option<Open>,
}

/// Bytes that were read in part.
#[derive(Clone, Debug)]
struct Open {
    hash: Vec<u8>,
    digest: Sha256,
    /// The number of the next piece.
    next: i32,
    flaw: Option<String>,
}

impl Default for Blobs {
    fn default() -> Self {
        Self { after: (Vec::new(), i32::MIN), open: None }
    }
}

impl Blobs {
    /// Reads some pieces; returns what is left to be read.
    pub(super) async fn next(
        mut self,
        reader: &Reader,
    ) -> Result<(CheckedPage, Option<Self>), Error> {
        let sql = format!(
            "SELECT hash, chunk, CASE WHEN octet_length(bytes) <= {CHUNK_BYTES} THEN bytes END \
             FROM sandglass.blobs WHERE (hash, chunk) > ($1, $2) ORDER BY hash, chunk LIMIT $3"
        );
        let (hash, chunk) = &self.after;
        let parameters: [Parameter<'_>; 3] =
            [(hash, Type::BYTEA), (chunk, Type::INT4), (&PIECES, Type::INT8)];
        let rows = reader.query(&sql, &parameters).await?;
        let mut page = CheckedPage { table: "blobs", ..CheckedPage::default() };
        for row in &rows {
            let key = || -> Result<(Vec<u8>, i32), tokio_postgres::Error> {
                Ok((row.try_get(0)?, row.try_get(1)?))
            };
            let (hash, chunk) = key().map_err(|error| reader.unreadable(error))?;
            let bytes: Option<&[u8]> = row.try_get(2).map_err(|error| reader.unreadable(error))?;
            if self.open.as_ref().is_none_or(|open| open.hash != hash) {
                let done = self.open.replace(Open::new(hash.clone()));
                page.flaws.extend(finish(reader, done).await?);
            }
            if let Some(open) = &mut self.open {
                open.add(chunk, bytes);
            }
            page.rows += 1;
            self.after = (hash, chunk);
        }
        if rows.is_empty() {
            page.flaws.extend(finish(reader, self.open.take()).await?);
            return Ok((page, None));
        }
        Ok((page, Some(self)))
    }
}

impl Open {
    fn new(hash: Vec<u8>) -> Self {
        Self { hash, digest: Sha256::new(), next: 0, flaw: None }
    }

    /// Adds a piece; `None` if it is larger than any.
    fn add(&mut self, chunk: i32, bytes: Option<&[u8]>) {
        if chunk != self.next {
            let missing = self.next;
            self.flaw.get_or_insert_with(|| format!("piece {missing} is missing"));
        }
        match bytes {
            Some(bytes) => self.digest.update(bytes),
            None => {
                let what = || format!("piece {chunk} is larger than {CHUNK_BYTES} bytes");
                self.flaw.get_or_insert_with(what);
            }
        }
        self.next = chunk.saturating_add(1);
    }
}

/// What is wrong with bytes of which all pieces were read.
async fn finish(reader: &Reader, open: Option<Open>) -> Result<Option<Flaw>, Error> {
    let Some(Open { hash, digest, flaw, .. }) = open else { return Ok(None) };
    let is_whole = digest.finalize()[..] == hash[..];
    let what = flaw.or_else(|| (!is_whole).then(|| "the bytes do not match their hash".to_owned()));
    let Some(what) = what else { return Ok(None) };
    // Without a recording they may have been swept while they were read.
    let sql = "SELECT n.partition, n.position FROM (SELECT 1) AS one \
         LEFT JOIN LATERAL (SELECT partition, position FROM sandglass.recordings WHERE hash = $1 \
           AND bytes IS NULL ORDER BY partition, position LIMIT 1) n ON true \
         WHERE n.position IS NOT NULL \
           OR EXISTS (SELECT 1 FROM sandglass.blobs WHERE hash = $1)";
    let rows = reader.query(sql, &[(&hash, Type::BYTEA)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let read = || -> Result<(Option<i16>, Option<i64>), tokio_postgres::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?))
    };
    let (number, at) = read().map_err(|error| reader.unreadable(error))?;
    let number = number.and_then(|number| u8::try_from(number).ok());
    let name: String = hash.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(Flaw {
        table: "blobs",
        partition: number.and_then(Partition::new),
        position: at.map(position),
        what: format!("{what} (SHA-256 {name})"),
    }))
}
