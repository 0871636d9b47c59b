-- What format 2 adds, also to a journal of format 1. It marks that records of later
-- kinds may be in it, too.

-- Where each dispatch was asked for. A body that decayed must not keep its row from
-- being set aside.
CREATE INDEX IF NOT EXISTS records_of_dispatch
    ON records (iif(json_valid(body), body ->> '$.dispatch', NULL))
    WHERE kind = 'dispatched';
