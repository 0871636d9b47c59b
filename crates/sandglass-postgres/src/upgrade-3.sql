-- From format 2 to 3: processes that share the partitions state where the others reach them, which format
-- of records they read, whether they give their partitions away, and how long they may be silent.
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS url text;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS reads_format integer NOT NULL DEFAULT 1;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS draining boolean NOT NULL DEFAULT false;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS ttl_ms bigint;
-- The deployment that each runs, and why it cannot run the active one.
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS generation bigint;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS trouble text;
