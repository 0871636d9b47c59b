-- The indexes of the newest format. One that was lost is made again.

CREATE INDEX IF NOT EXISTS records_of_entity ON records (entity_type, entity_id, position);

-- Where each dispatch was asked for: by the second half of its id, which begins with the time,
-- so that new entries are beside one another. A body that decayed must not keep its row from
-- being set aside.
CREATE INDEX IF NOT EXISTS dispatches_by_id
    ON records (iif(json_valid(body), unhex(substr(body ->> '$.dispatch', 17, 16)), NULL))
    WHERE kind = 'dispatched';

-- By the second half of the id first, as above. The first half is random, so with an index by the whole
-- id each recording changed an index page of its own.
CREATE UNIQUE INDEX IF NOT EXISTS recordings_of_dispatch
    ON recordings (unhex(substr(dispatch, 17, 16)), unhex(substr(dispatch, 1, 16)), attempt);
CREATE INDEX IF NOT EXISTS snapshots_by_position ON snapshots (position);

CREATE INDEX IF NOT EXISTS entities_by_due
    ON entities (due, entity_type, entity_id) WHERE due IS NOT NULL;
CREATE INDEX IF NOT EXISTS entities_by_spec
    ON entities (entity_type, spec, entity_id) WHERE spec IS NOT NULL;
CREATE INDEX IF NOT EXISTS ended_entities
    ON entities (rests_at, entity_type, entity_id) WHERE spec IS NULL AND rests_at IS NOT NULL;
