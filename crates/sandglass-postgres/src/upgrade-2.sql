-- From format 1 to 2: appends write small recordings themselves, so their bytes are with their names.
ALTER TABLE sandglass.recordings ADD COLUMN IF NOT EXISTS bytes bytea;
DROP INDEX IF EXISTS sandglass.recordings_of_hash;
CREATE INDEX recordings_of_hash ON sandglass.recordings (hash) WHERE bytes IS NULL;
