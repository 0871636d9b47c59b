-- What format 3 adds, also to a journal of an earlier one.

-- What was recorded of runs of guests, each at the position of its run's end.
CREATE TABLE recordings (
    position INTEGER PRIMARY KEY,
    dispatch TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    body     BLOB NOT NULL,
    checksum BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX recordings_of_dispatch ON recordings (dispatch, attempt);

-- The last snapshot of each entity: its state as the records up to that position make it.
-- One that is lost is made again from them.
CREATE TABLE snapshots (
    entity_type TEXT NOT NULL,
    entity_id   TEXT NOT NULL,
    position    INTEGER NOT NULL,
    body        TEXT NOT NULL,
    checksum    BLOB NOT NULL,
    PRIMARY KEY (entity_type, entity_id)
) STRICT;
CREATE INDEX snapshots_by_position ON snapshots (position);

-- The places of records that were removed on purpose. No two of them touch.
CREATE TABLE pruned (
    first    INTEGER PRIMARY KEY,
    last     INTEGER NOT NULL,
    checksum BLOB NOT NULL
) STRICT;

-- Each index costs each transaction about a page for each of its entities, and who writes
-- knows without this one that an entity takes each step of its sequence once.
DROP INDEX IF EXISTS steps_of_entity;

-- In the place of that of format 2: a third of its size, as it is written at random places.
-- Of the 128 bits of an id, 48 leave next to nothing to compare.
DROP INDEX IF EXISTS records_of_dispatch;
CREATE INDEX dispatches_by_id
    ON records (iif(json_valid(body), unhex(substr(body ->> '$.dispatch', 1, 12)), NULL))
    WHERE kind = 'dispatched';
