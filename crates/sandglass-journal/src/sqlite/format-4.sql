-- What format 4 adds, also to a journal of an earlier one.

-- The last position that was given out before the last write: what stands behind it can be
-- torn, and nothing else.
ALTER TABLE head ADD COLUMN before INTEGER NOT NULL DEFAULT 0;
UPDATE head SET before = position;

-- By the first half of the ids, which is random. Another takes its place.
DROP INDEX IF EXISTS dispatches_by_id;
