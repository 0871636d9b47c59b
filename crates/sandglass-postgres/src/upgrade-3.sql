-- From format 2 to 3: processes that share the partitions state where the others reach them, which format
-- of records they read, and whether they give their partitions away.
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS url text;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS reads_format integer NOT NULL DEFAULT 1;
ALTER TABLE sandglass.hosts ADD COLUMN IF NOT EXISTS draining boolean NOT NULL DEFAULT false;
