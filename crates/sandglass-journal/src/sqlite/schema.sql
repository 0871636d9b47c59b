-- Format 1. `batch` is the position of the last record of the batch that a
-- record was appended with, so that a batch is whole or absent also after damage.
CREATE TABLE records (
    position    INTEGER PRIMARY KEY,
    batch       INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    entity_type TEXT,
    entity_id   TEXT,
    sequence    INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    body        TEXT NOT NULL,
    checksum    BLOB NOT NULL
) STRICT;

-- The last position given out: without it, the loss of the last rows would show nowhere.
CREATE TABLE head (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL
) STRICT;
INSERT INTO head VALUES (1, 0);

-- What stood at the end and was not whole when the journal was opened.
CREATE TABLE torn_records (
    torn        INTEGER PRIMARY KEY,
    why         TEXT NOT NULL,
    position    ANY,
    batch       ANY,
    at_ms       ANY,
    entity_type ANY,
    entity_id   ANY,
    sequence    ANY,
    kind        ANY,
    body        ANY,
    checksum    ANY
) STRICT;
