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

CREATE INDEX records_of_entity ON records (entity_type, entity_id, position);

-- An entity takes each step of its sequence once.
CREATE UNIQUE INDEX steps_of_entity ON records (entity_type, entity_id, sequence)
    WHERE kind IN ('created', 'transition');

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

-- For people with a SQL prompt.
CREATE VIEW log AS
    SELECT position,
           strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at,
           entity_type || '/' || entity_id AS entity,
           sequence, kind, body
    FROM records;
CREATE VIEW transitions AS
    SELECT position, at, entity, sequence,
           body ->> '$.action' AS action,
           body ->> '$.from' AS from_state,
           body ->> '$.to' AS to_state,
           body ->> '$.cause.cause' AS cause,
           body ->> '$.trace' AS trace,
           body -> '$.params' AS params
    FROM log WHERE kind = 'transition';
CREATE VIEW dispatches AS
    SELECT position, at, entity, sequence,
           body ->> '$.dispatch' AS dispatch,
           body ->> '$.integration' AS integration,
           body ->> '$.module' AS module,
           body ->> '$.attempt' AS attempt,
           body ->> '$.budget_ms' AS budget_ms
    FROM log WHERE kind = 'dispatched';
CREATE VIEW endings AS
    SELECT position, at, entity, sequence,
           body ->> '$.dispatch' AS dispatch,
           body ->> '$.attempt' AS attempt,
           body ->> '$.outcome.outcome' AS outcome,
           body ->> '$.cause' AS cause,
           body ->> '$.dying_span' AS dying_span,
           body ->> '$.deadline.elapsed_ms' AS elapsed_ms,
           body ->> '$.decision.decision' AS decision,
           body ->> '$.decision.action' AS action
    FROM log WHERE kind = 'ended';
