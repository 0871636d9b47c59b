//! What the hosts of a cluster run: deployments, each with a number of its own, its *generation*. Hosts
//! store what they propose, an operator activates one, and all hosts follow. One row states which, so it is
//! changed by comparing it first. Each change locks that row before it locks a deployment, so that no two
//! changes wait for each other.
//!
//! A deployment is stored before its files, so that these are never taken for leftovers of another one.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_journal::Error;
use sandglass_model::{Agreement, WallTime};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::address::Address;
use crate::blobs::{CHUNK_BYTES, Hash};
use crate::fault::Fault;
use crate::hosts::RECORDS_FORMAT;
use crate::link::{Connector, Link, Parameter};
use crate::membership::number_of;
use crate::schema;
use crate::settings::Settings;

/// How many generations are kept: the active one, and those that were stored or activated last.
pub const GENERATIONS_KEPT: usize = 32;
/// Largest manifest of a deployment, in bytes.
pub const MANIFEST_MAX_BYTES: usize = 1 << 20;
/// Most bytes of all files of a deployment.
pub const FILES_MAX_BYTES: usize = 256 << 20;

/// The deployments of a database. Each call makes a connection of its own, because they are rare. Needs a
/// tokio runtime, and uses it. Cheap to clone.
#[derive(Clone)]
pub struct Deployments {
    connector: Connector,
    settings: Settings,
}

/// A deployment that is stored, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Its number.
    pub generation: u64,
    /// The host that proposed it, for people.
    pub proposed_by: String,
    /// The version of that host's program.
    pub version: String,
    /// When it was proposed.
    pub at: WallTime,
    /// When it was last activated; `None` if it never was.
    pub activated: Option<WallTime>,
}

/// A deployment that is to be stored.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// What it consists of: a text that names its files by their SHA-256. Equal texts are one deployment.
    pub manifest: String,
    /// The SHA-256 of all its files.
    pub files: BTreeSet<[u8; 32]>,
    /// Those files that the database may not have.
    pub contents: BTreeMap<[u8; 32], std::sync::Arc<[u8]>>,
    /// The host that proposes it, for people.
    pub proposed_by: String,
    /// When.
    pub at: WallTime,
}

/// The content of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentContent {
    /// Its manifest.
    pub manifest: String,
    /// Its files by SHA-256, which is that of the bytes.
    pub files: BTreeMap<[u8; 32], Vec<u8>>,
}

/// The result of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The generation is active now.
    Done {
        /// The number of this change: what was read at an earlier one is out of date.
        changes: u64,
    },
    /// There is no such generation.
    Unknown,
    /// Another one is active than expected, and nothing was changed.
    Conflict {
        /// The one that is active.
        active: Option<u64>,
    },
}

/// The result of a request for the newest format of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatUpgrade {
    /// This format is written from now on.
    Done(u32),
    /// It was written before.
    Already(u32),
    /// These hosts cannot read it, and nothing was changed.
    Refused {
        /// The format.
        format: u32,
        /// The name and URL of each, and the newest format that it reads.
        hosts: Vec<(String, u32)>,
    },
}

/// What error messages call the place of deployments.
const PLACE: &str = "the tables of deployments";

impl Deployments {
    /// The deployments of the database at this address.
    ///
    /// # Errors
    /// As [`Database::open`].
    ///
    /// [`Database::open`]: crate::Database::open
    pub async fn connect(address: &Address, settings: Settings) -> Result<Self, Error> {
        let connector = Connector::new(address, settings.connect_limit);
        let connector = connector.map_err(|fault| fault.unavailable())?;
        let this = Self { connector, settings };
        let link = this.link().await?;
        schema::check(&link, &settings, this.connector.place()).await?;
        Ok(this)
    }

    /// What all hosts follow now.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Damaged`] if its row cannot be read.
    pub async fn agreed(&self) -> Result<Agreement, Error> {
        self.agreed_on(&self.link().await?).await
    }

    /// All deployments that can be activated, by generation.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Damaged`] if a row cannot be read.
    pub async fn list(&self) -> Result<Vec<Deployment>, Error> {
        let sql = "SELECT generation, proposed_by, version, at_ms, activated_ms \
                   FROM sandglass.deployments WHERE complete ORDER BY generation";
        let rows = self.query(&self.link().await?, sql, &[]).await?;
        let read = |row: &Row| {
            Ok(Deployment {
                generation: unsigned(row, 0)?,
                proposed_by: value(row, 1)?,
                version: value(row, 2)?,
                at: WallTime::from_millis(value(row, 3)?),
                activated: value::<Option<i64>>(row, 4)?.map(WallTime::from_millis),
            })
        };
        rows.iter().map(read).collect()
    }

    /// The content of a generation, whose files have the hashes by which it names them. `None` if there is
    /// no such generation.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Damaged`] if a file is missing or has another content.
    pub async fn fetch(&self, generation: u64) -> Result<Option<DeploymentContent>, Error> {
        let link = self.link().await?;
        let sql =
            "SELECT manifest, files FROM sandglass.deployments WHERE generation = $1 AND complete";
        let rows = self.query(&link, sql, &[(&number_of(generation), Type::INT8)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (manifest, hashes) = (value(row, 0)?, value::<Vec<Vec<u8>>>(row, 1)?);
        let mut files = BTreeMap::new();
        let mut room = FILES_MAX_BYTES;
        for hash in hashes {
            let hash = Hash::try_from(hash)
                .map_err(|_| damaged_error("a file's hash has another length"))?;
            let bytes = self.read_file(&link, &hash, room).await?;
            room = room.saturating_sub(bytes.len());
            files.insert(hash, bytes);
        }
        Ok(Some(DeploymentContent { manifest, files }))
    }

    /// Stores a deployment, unless it is stored already, and returns its generation. This does not activate
    /// it.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Unavailable`], also if the database lacks a file that `contents` does
    /// not have. It may be stored nevertheless.
    pub async fn propose(&self, proposal: &Proposal) -> Result<u64, Error> {
        require_bounds(proposal)?;
        let link = self.link().await?;
        let hash: Hash = Sha256::digest(&proposal.manifest).into();
        let hash = &hash[..];
        let files: Vec<&[u8]> = proposal.files.iter().map(|hash| &hash[..]).collect();
        let at = proposal.at.as_millis();
        let sql = "WITH next AS (UPDATE sandglass.agreed SET last = last + 1, changes = changes + 1 \
                     WHERE NOT EXISTS (SELECT 1 FROM sandglass.deployments WHERE hash = $1) \
                     RETURNING last, changes) \
                   INSERT INTO sandglass.deployments (generation, hash, manifest, files, complete, \
                     proposed_by, version, at_ms, used) \
                   SELECT last, $1, $2, $3, false, $4, $5, $6, changes FROM next \
                   ON CONFLICT (hash) DO NOTHING RETURNING generation";
        let version = env!("CARGO_PKG_VERSION");
        let parameters: [Parameter<'_>; 6] = [
            (&hash, Type::BYTEA),
            (&proposal.manifest, Type::TEXT),
            (&files, Type::BYTEA_ARRAY),
            (&proposal.proposed_by, Type::TEXT),
            (&version, Type::TEXT),
            (&at, Type::INT8),
        ];
        let is_new = !self.query(&link, sql, &parameters).await?.is_empty();
        let sql = "SELECT generation, complete FROM sandglass.deployments WHERE hash = $1";
        let rows = self.query(&link, sql, &[(&hash, Type::BYTEA)]).await?;
        let row = rows.first().ok_or_else(removed_error)?;
        let (generation, is_complete) = (unsigned(row, 0)?, value::<bool>(row, 1)?);
        if is_complete {
            return Ok(generation);
        }
        self.store_files(&link, proposal).await?;
        // A change, so that hosts list it.
        let sql = "WITH first AS MATERIALIZED (SELECT one FROM sandglass.agreed FOR UPDATE), \
                   done AS (UPDATE sandglass.deployments SET complete = true FROM first \
                     WHERE generation = $1 RETURNING generation) \
                   UPDATE sandglass.agreed SET changes = changes + 1 \
                   WHERE EXISTS (SELECT 1 FROM done) RETURNING one";
        let done = self.query(&link, sql, &[(&number_of(generation), Type::INT8)]).await?;
        if done.is_empty() {
            return Err(removed_error());
        }
        if is_new {
            self.remove_old(&link).await;
        }
        Ok(generation)
    }

    /// Makes a generation the active one, if `expected` is active now. All hosts follow with their next
    /// beats.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; it may be active nevertheless.
    pub async fn activate(
        &self,
        generation: u64,
        expected: Option<u64>,
        at: WallTime,
    ) -> Result<Activation, Error> {
        let link = self.link().await?;
        let sql = "WITH first AS MATERIALIZED (SELECT one FROM sandglass.agreed FOR UPDATE), \
                   wanted AS (SELECT generation FROM sandglass.deployments, first \
                     WHERE generation = $1 AND complete FOR UPDATE OF deployments), \
                   changed AS (UPDATE sandglass.agreed SET generation = $1, changes = changes + 1 \
                     WHERE EXISTS (SELECT 1 FROM wanted) AND generation IS NOT DISTINCT FROM $2 \
                     RETURNING changes) \
                   UPDATE sandglass.deployments SET activated_ms = $3, used = changed.changes \
                   FROM changed WHERE deployments.generation = $1 RETURNING changed.changes";
        let (number, expected) = (number_of(generation), expected.map(number_of));
        let at = at.as_millis();
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT8), (&expected, Type::INT8), (&at, Type::INT8)];
        if let Some(row) = self.query(&link, sql, &parameters).await?.first() {
            return Ok(Activation::Done { changes: unsigned(row, 0)? });
        }
        let sql = "SELECT 1 FROM sandglass.deployments WHERE generation = $1 AND complete";
        if self.query(&link, sql, &[(&number, Type::INT8)]).await?.is_empty() {
            return Ok(Activation::Unknown);
        }
        Ok(Activation::Conflict { active: self.agreed_on(&link).await?.generation })
    }

    /// Has all hosts write the newest format of records that this version has, if all of them can read it.
    /// A host that joins later and cannot read it is refused.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; it may be done nevertheless.
    pub async fn upgrade_format(&self) -> Result<FormatUpgrade, Error> {
        let link = self.link().await?;
        let wanted = i32::try_from(RECORDS_FORMAT).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 1] = [(&wanted, Type::INT4)];
        let behind = "url IS NOT NULL AND NOT dead AND reads_format < $1";
        let sql = format!(
            "UPDATE sandglass.agreed SET writes_format = $1, changes = changes + 1 \
             WHERE writes_format < $1 AND NOT EXISTS (SELECT 1 FROM sandglass.hosts WHERE {behind}) \
             RETURNING one"
        );
        if !self.query(&link, &sql, &parameters).await?.is_empty() {
            return Ok(FormatUpgrade::Done(RECORDS_FORMAT));
        }
        let present = self.agreed_on(&link).await?.writes_format;
        if present >= RECORDS_FORMAT {
            return Ok(FormatUpgrade::Already(present));
        }
        let sql = format!(
            "SELECT name || ' at ' || url, reads_format FROM sandglass.hosts WHERE {behind} ORDER BY name"
        );
        let rows = self.query(&link, &sql, &parameters).await?;
        let host = |row: &Row| {
            let format: i32 = value(row, 1)?;
            Ok((value(row, 0)?, u32::try_from(format).unwrap_or_default()))
        };
        let hosts = rows.iter().map(host).collect::<Result<_, Error>>()?;
        Ok(FormatUpgrade::Refused { format: RECORDS_FORMAT, hosts })
    }

    async fn agreed_on(&self, link: &Link) -> Result<Agreement, Error> {
        let sql = "SELECT generation, changes, writes_format FROM sandglass.agreed";
        let rows = self.query(link, sql, &[]).await?;
        let row = rows.first().ok_or_else(|| damaged_error("`sandglass.agreed` has no row"))?;
        let generation: Option<i64> = value(row, 0)?;
        let format: i32 = value(row, 2)?;
        Ok(Agreement {
            generation: generation.and_then(|number| u64::try_from(number).ok()),
            changes: unsigned(row, 1)?,
            writes_format: u32::try_from(format).unwrap_or_default(),
        })
    }

    /// Stores those files of a deployment that the database does not have.
    async fn store_files(&self, link: &Link, proposal: &Proposal) -> Result<(), Error> {
        let files: Vec<&[u8]> = proposal.files.iter().map(|hash| &hash[..]).collect();
        let sql = "SELECT n.hash FROM unnest($1::bytea[]) AS n(hash) WHERE NOT EXISTS \
                   (SELECT 1 FROM sandglass.deployment_files f WHERE f.hash = n.hash)";
        let missing = self.query(link, sql, &[(&files, Type::BYTEA_ARRAY)]).await?;
        for row in &missing {
            let hash: &[u8] = value(row, 0)?;
            let bytes = Hash::try_from(hash).ok().and_then(|hash| proposal.contents.get(&hash));
            let bytes = bytes.ok_or_else(removed_error)?;
            // An empty file has one piece, too.
            let pieces: Vec<&[u8]> = match bytes.is_empty() {
                true => vec![&bytes[..]],
                false => bytes.chunks(CHUNK_BYTES).collect(),
            };
            let chunks: Vec<i32> = (0..).take(pieces.len()).collect();
            let sql = "INSERT INTO sandglass.deployment_files (hash, chunk, bytes) \
                       SELECT $1, n.chunk, n.bytes FROM unnest($2::integer[], $3::bytea[]) AS n(chunk, bytes) \
                       ON CONFLICT (hash, chunk) DO NOTHING";
            let parameters: [Parameter<'_>; 3] =
                [(&hash, Type::BYTEA), (&chunks, Type::INT4_ARRAY), (&pieces, Type::BYTEA_ARRAY)];
            self.query(link, sql, &parameters).await?;
        }
        Ok(())
    }

    async fn read_file(&self, link: &Link, hash: &Hash, max: usize) -> Result<Vec<u8>, Error> {
        let (mut bytes, bytea) = (Vec::new(), &hash[..]);
        for chunk in 0_i32.. {
            let sql = "SELECT bytes FROM sandglass.deployment_files WHERE hash = $1 AND chunk = $2";
            let parameters: [Parameter<'_>; 2] = [(&bytea, Type::BYTEA), (&chunk, Type::INT4)];
            let rows = self.query(link, sql, &parameters).await?;
            let Some(row) = rows.first() else { break };
            let piece: &[u8] = value(row, 0)?;
            if bytes.len() + piece.len() > max {
                return Err(damaged_error(
                    "the files of a deployment are larger than one may have",
                ));
            }
            bytes.extend_from_slice(piece);
            if piece.len() < CHUNK_BYTES {
                break;
            }
        }
        if Hash::from(Sha256::digest(&bytes)) != *hash {
            return Err(damaged_error(
                "a file of a deployment is missing or has another content than its hash",
            ));
        }
        Ok(bytes)
    }

    /// Removes the generations whose last use is longest ago, and files that no generation names. If this
    /// fails, the next proposal does it. It is one transaction, which begins with the lock that each proposal takes
    /// before it looks for files.
    async fn remove_old(&self, link: &Link) {
        let others = GENERATIONS_KEPT - 1;
        let sql = format!(
            "SELECT one FROM sandglass.agreed FOR UPDATE; \
             DELETE FROM sandglass.deployments WHERE generation IN \
               (SELECT d.generation FROM sandglass.deployments d, sandglass.agreed a \
                WHERE d.generation IS DISTINCT FROM a.generation ORDER BY d.used DESC OFFSET {others}); \
             DELETE FROM sandglass.deployment_files f WHERE NOT EXISTS \
               (SELECT 1 FROM sandglass.deployments d WHERE f.hash = ANY (d.files));"
        );
        if let Err(fault) = link.execute_all(self.settings.statement_limit, &sql).await {
            tracing::warn!(why = %fault.what, "old generations could not be removed");
        }
    }

    async fn link(&self) -> Result<Link, Error> {
        self.connector.connect().await.map_err(|fault| fault.unavailable())
    }

    async fn query(
        &self,
        link: &Link,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let rows = link.query_or_cancel(self.settings.statement_limit, sql, parameters).await;
        rows.map_err(|fault: Fault| fault.unavailable())
    }
}

impl std::fmt::Debug for Deployments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deployments").field("place", &self.connector.place()).finish()
    }
}

fn require_bounds(proposal: &Proposal) -> Result<(), Error> {
    let size = proposal.contents.values().map(|bytes| bytes.len()).sum();
    let sizes = [
        ("the manifest of a deployment", proposal.manifest.len(), MANIFEST_MAX_BYTES),
        ("the files of a deployment", size, FILES_MAX_BYTES),
    ];
    match sizes.into_iter().find(|(_, size, limit)| size > limit) {
        Some((what, size, limit)) => Err(Error::TooLarge { what, size, limit }),
        None => Ok(()),
    }
}

fn removed_error() -> Error {
    let what = "the deployment was removed while it was stored: try again";
    Error::Unavailable { what: what.to_owned() }
}

fn damaged_error(what: &str) -> Error {
    Error::Damaged { place: PLACE.to_owned(), what: what.to_owned() }
}

fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Error> {
    row.try_get(column).map_err(|error| damaged_error(&error.to_string()))
}

fn unsigned(row: &Row, column: usize) -> Result<u64, Error> {
    u64::try_from(value::<i64>(row, column)?).map_err(|_| damaged_error("a number is negative"))
}
