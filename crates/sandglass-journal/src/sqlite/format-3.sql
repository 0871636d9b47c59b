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
