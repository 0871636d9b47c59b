-- What format 3 adds, also to a journal of an earlier one.

-- What was recorded of runs of guests, each at the position of its run's end.
CREATE TABLE recordings (
    position INTEGER PRIMARY KEY,
    dispatch TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    body     BLOB NOT NULL,
    checksum BLOB NOT NULL
) STRICT;

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

-- The places of records that were removed on purpose. No two of them touch.
CREATE TABLE pruned (
    first    INTEGER PRIMARY KEY,
    last     INTEGER NOT NULL,
    checksum BLOB NOT NULL
) STRICT;

-- Those of earlier formats. Each index costs each transaction about a page for each of its
-- entities: who writes knows without the first that an entity takes each step of its sequence
-- once, and there is another in the place of the second, of a third of its size.
DROP INDEX IF EXISTS steps_of_entity;
DROP INDEX IF EXISTS records_of_dispatch;
