-- What format 6 adds, also to a journal of an earlier one.

-- What is known of each entity without its records. While it is awake, `rests_at` is null. While
-- it rests, `rests_at` is the position of its last record, `wake_at` the time of its next timer in
-- milliseconds, and `spec` the digest of the spec that it obeys; null if it has ended. `due` is
-- the order in which a start wants them: the least number for those that are awake or listed, then
-- `wake_at`. The records contain all of it: if the table is lost, all entities are awake.
CREATE TABLE IF NOT EXISTS entities (
    entity_type TEXT NOT NULL,
    entity_id   TEXT NOT NULL,
    rests_at    INTEGER,
    wake_at     INTEGER,
    is_listed   INTEGER NOT NULL DEFAULT 0,
    spec        BLOB,
    due         INTEGER,
    checksum    BLOB,
    PRIMARY KEY (entity_type, entity_id)
) STRICT, WITHOUT ROWID;
