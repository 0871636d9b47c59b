-- Format 3: 64 journals, each with positions from 1 on. Only what every PostgreSQL-like database has:
-- no sequences, triggers, foreign keys or functions of the database's clock.

-- Which format this is, how many partitions there are, and how names are hashed. Written first and once.
CREATE TABLE sandglass.cluster (
    one        smallint PRIMARY KEY CHECK (one = 1),
    format     integer NOT NULL,
    partitions smallint NOT NULL,
    hash       text NOT NULL
);

-- Each process that opened the database, by an id of its own. `url` is where the others reach it; null
-- for a process that opened the database alone. `generation` is the deployment that it runs, and `trouble`
-- why it cannot run the active one. An id that is dead, or that is not here any more, is never used again.
CREATE TABLE sandglass.hosts (
    host         text PRIMARY KEY,
    name         text NOT NULL,
    version      text NOT NULL,
    beats        bigint NOT NULL,
    dead         boolean NOT NULL,
    url          text,
    reads_format integer NOT NULL DEFAULT 1,
    draining     boolean NOT NULL DEFAULT false,
    ttl_ms       bigint,
    generation   bigint,
    trouble      text
);

-- Who may append to each partition; `owner` is null if the last one gave it away. The epoch grows with
-- each takeover and when a partition is given away, and every append proves it.
-- `floor` is the last position that was assigned, if that record was pruned.
CREATE TABLE sandglass.partitions (
    partition smallint PRIMARY KEY,
    epoch     bigint NOT NULL,
    owner     text,
    floor     bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- The log. `entity` is the position of the entity's first record, and null for records about none.
-- `batch` is the position of the last record of the batch. `dispatch` is the second half of the id of
-- a dispatch, which begins with the time, so that new entries of the index are beside each other.
CREATE TABLE sandglass.records (
    partition smallint NOT NULL,
    position  bigint NOT NULL,
    batch     bigint NOT NULL,
    epoch     bigint NOT NULL,
    at_ms     bigint NOT NULL,
    entity    bigint,
    sequence  bigint NOT NULL,
    kind      text NOT NULL,
    dispatch  bigint,
    body      text NOT NULL,
    checksum  bytea NOT NULL,
    PRIMARY KEY (partition, position)
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
        autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX records_of_entity ON sandglass.records (partition, entity, position);
CREATE INDEX records_of_dispatch ON sandglass.records (partition, dispatch)
    WHERE dispatch IS NOT NULL;

-- Each entity that has records. While it is awake, `rests_at` is null. While it rests, `rests_at` is the
-- position of its last record, `wake_at` the time of its next timer in milliseconds, and `spec` the
-- digest of the spec that it obeys; null if it has ended. `due` is the order in which a start wants
-- them: the least number for those that are awake or listed, then `wake_at`. Names are in the order of
-- their bytes.
CREATE TABLE sandglass.entities (
    partition smallint NOT NULL,
    entity    bigint NOT NULL,
    type      text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    rests_at  bigint,
    wake_at   bigint,
    is_listed boolean NOT NULL DEFAULT false,
    spec      bytea,
    due       bigint,
    checksum  bytea,
    PRIMARY KEY (partition, entity)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX entities_by_name ON sandglass.entities (partition, type, id);
CREATE INDEX entities_by_due ON sandglass.entities (partition, due, type, id) WHERE due IS NOT NULL;
CREATE INDEX entities_by_spec ON sandglass.entities (partition, type, spec, id)
    WHERE spec IS NOT NULL;
CREATE INDEX ended_entities ON sandglass.entities (partition, rests_at, type, id)
    WHERE spec IS NULL AND rests_at IS NOT NULL;

-- The last snapshot of each entity. One that is lost is made again from the records.
CREATE TABLE sandglass.snapshots (
    partition smallint NOT NULL,
    entity    bigint NOT NULL,
    position  bigint NOT NULL,
    body      text NOT NULL,
    checksum  bytea NOT NULL,
    PRIMARY KEY (partition, entity)
) WITH (fillfactor = 70);

-- The positions of records that were removed on purpose. A range may be within another one.
CREATE TABLE sandglass.pruned (
    partition smallint NOT NULL,
    first     bigint NOT NULL,
    last      bigint NOT NULL,
    checksum  bytea NOT NULL,
    PRIMARY KEY (partition, first)
);

-- What was recorded of handlers, at the position of each handler's end: the SHA-256 of the bytes, and
-- the bytes themselves if they are few. Those of the others are in `blobs`.
CREATE TABLE sandglass.recordings (
    partition smallint NOT NULL,
    position  bigint NOT NULL,
    dispatch  text NOT NULL,
    attempt   bigint NOT NULL,
    hash      bytea NOT NULL,
    checksum  bytea NOT NULL,
    bytes     bytea,
    PRIMARY KEY (partition, position)
);
CREATE UNIQUE INDEX recordings_of_dispatch ON sandglass.recordings (partition, dispatch, attempt);
CREATE INDEX recordings_of_hash ON sandglass.recordings (hash) WHERE bytes IS NULL;

-- Bytes by their SHA-256, in pieces. `puts` counts how often they were stored, so that what is being
-- used again is not removed.
CREATE TABLE sandglass.blobs (
    hash  bytea NOT NULL,
    chunk integer NOT NULL,
    puts  bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (hash, chunk)
);
