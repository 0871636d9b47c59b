-- For people with a SQL prompt. Made anew with each format, and read by nothing here.
DROP VIEW IF EXISTS sandglass.transitions;
DROP VIEW IF EXISTS sandglass.dispatches;
DROP VIEW IF EXISTS sandglass.endings;
DROP VIEW IF EXISTS sandglass.bodies;
DROP VIEW IF EXISTS sandglass.log;

CREATE VIEW sandglass.log AS
    SELECT r.partition, r.position,
           to_char(to_timestamp(r.at_ms / 1000.0) AT TIME ZONE 'UTC',
                   'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS at,
           e.type || '/' || e.id AS entity,
           r.sequence, r.kind, r.body
    FROM sandglass.records r
    LEFT JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity;
-- The bodies as JSON. PostgreSQL has no text with a zero character, so another one takes its place.
CREATE VIEW sandglass.bodies AS
    SELECT partition, position, at, entity, sequence, kind,
           CASE WHEN strpos(body, '\u0000') = 0 THEN body
                ELSE replace(replace(replace(body, '\\', chr(1)), '\u0000', '\ufffd'), chr(1), '\\')
           END::json AS body
    FROM sandglass.log;
CREATE VIEW sandglass.transitions AS
    SELECT partition, position, at, entity, sequence,
           body ->> 'action' AS action,
           body ->> 'from' AS from_state,
           body ->> 'to' AS to_state,
           body #>> '{cause,cause}' AS cause,
           body ->> 'trace' AS trace,
           body -> 'params' AS params
    FROM sandglass.bodies WHERE kind = 'transition';
CREATE VIEW sandglass.dispatches AS
    SELECT partition, position, at, entity, sequence,
           (body ->> 'expected')::bigint AS expected,
           body ->> 'dispatch' AS dispatch,
           (body ->> 'attempt')::bigint AS attempt,
           body ->> 'integration' AS integration,
           body ->> 'module' AS module,
           body ->> 'module_hash' AS module_hash,
           body ->> 'spec' AS spec,
           body ->> 'action' AS action,
           body -> 'params' AS params,
           body ->> 'state' AS state,
           body -> 'variables' AS variables,
           body -> 'config' AS config,
           (body ->> 'budget_ms')::bigint AS budget_ms,
           body ->> 'owner' AS owner,
           body ->> 'asker' AS asker,
           body ->> 'trace' AS trace
    FROM sandglass.bodies WHERE kind = 'dispatched';
CREATE VIEW sandglass.endings AS
    SELECT partition, position, at, entity, sequence,
           body ->> 'dispatch' AS dispatch,
           (body ->> 'attempt')::bigint AS attempt,
           body #>> '{outcome,outcome}' AS outcome,
           body ->> 'cause' AS cause,
           body ->> 'dying_span' AS dying_span,
           body #>> '{ended_at,place}' AS ended_place,
           body #>> '{ended_at,call}' AS ended_call,
           (body #>> '{host_calls,count}')::bigint AS host_calls,
           to_char(to_timestamp((body ->> 'started_at')::bigint / 1000.0)
                   AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS started_at,
           to_char(to_timestamp((body ->> 'deadline_at')::bigint / 1000.0)
                   AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS deadline_at,
           (body #>> '{deadline,budget_ms}')::bigint AS budget_ms,
           body #>> '{deadline,owner}' AS owner,
           (body #>> '{deadline,elapsed_ms}')::bigint AS elapsed_ms,
           (body #>> '{deadline,overrun_us}')::bigint AS overrun_us,
           body #>> '{decision,decision}' AS decision,
           body #>> '{decision,action}' AS action
    FROM sandglass.bodies WHERE kind = 'ended';
