-- What hosts of a cluster can run. `manifest` names files and uploaded modules by their SHA-256; `hash` is
-- its own, and `files` has those that it names. Until all of them are stored, it is not complete. `used` is
-- the number of the change that stored or activated it last.
CREATE TABLE IF NOT EXISTS sandglass.deployments (
    generation   bigint PRIMARY KEY,
    hash         bytea NOT NULL UNIQUE,
    manifest     text NOT NULL,
    files        bytea[] NOT NULL,
    complete     boolean NOT NULL,
    proposed_by  text NOT NULL,
    version      text NOT NULL,
    at_ms        bigint NOT NULL,
    activated_ms bigint,
    used         bigint NOT NULL
);

-- Their files by SHA-256, in pieces.
CREATE TABLE IF NOT EXISTS sandglass.deployment_files (
    hash  bytea NOT NULL,
    chunk integer NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (hash, chunk)
);

-- What all hosts follow: the deployment that is active, and the format of records that is written. `last`
-- is the last generation that was assigned, and `changes` counts what was stored and activated. This row
-- is locked by each change, so changes come one after the other.
CREATE TABLE IF NOT EXISTS sandglass.agreed (
    one           smallint PRIMARY KEY CHECK (one = 1),
    generation    bigint,
    last          bigint NOT NULL,
    changes       bigint NOT NULL,
    writes_format integer NOT NULL
);
INSERT INTO sandglass.agreed VALUES (1, NULL, 0, 0, 1) ON CONFLICT (one) DO NOTHING;
