-- For people with a SQL prompt. Made anew with each format, and read by nothing here.
DROP VIEW IF EXISTS sandglass.transitions;
DROP VIEW IF EXISTS sandglass.dispatches;
DROP VIEW IF EXISTS sandglass.endings;
DROP VIEW IF EXISTS sandglass.log;

CREATE VIEW sandglass.log AS
    SELECT r.partition, r.position,
           to_char(to_timestamp(r.at_ms / 1000.0) AT TIME ZONE 'UTC',
                   'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS at,
           e.type || '/' || e.id AS entity,
           r.sequence, r.kind, r.body
    FROM sandglass.records r
    LEFT JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity;
CREATE VIEW sandglass.transitions AS
    SELECT partition, position, at, entity, sequence,
           body::json ->> 'action' AS action,
           body::json ->> 'from' AS from_state,
           body::json ->> 'to' AS to_state,
           body::json #>> '{cause,cause}' AS cause,
           body::json ->> 'trace' AS trace,
           body::json -> 'params' AS params
    FROM sandglass.log WHERE kind = 'transition';
CREATE VIEW sandglass.dispatches AS
    SELECT partition, position, at, entity, sequence,
           (body::json ->> 'expected')::bigint AS expected,
           body::json ->> 'dispatch' AS dispatch,
           (body::json ->> 'attempt')::bigint AS attempt,
           body::json ->> 'integration' AS integration,
           body::json ->> 'module' AS module,
           body::json ->> 'module_hash' AS module_hash,
           body::json ->> 'spec' AS spec,
           body::json ->> 'action' AS action,
           body::json -> 'params' AS params,
           body::json ->> 'state' AS state,
           body::json -> 'variables' AS variables,
           body::json -> 'config' AS config,
           (body::json ->> 'budget_ms')::bigint AS budget_ms,
           body::json ->> 'owner' AS owner,
           body::json ->> 'asker' AS asker,
           body::json ->> 'trace' AS trace
    FROM sandglass.log WHERE kind = 'dispatched';
CREATE VIEW sandglass.endings AS
    SELECT partition, position, at, entity, sequence,
           body::json ->> 'dispatch' AS dispatch,
           (body::json ->> 'attempt')::bigint AS attempt,
           body::json #>> '{outcome,outcome}' AS outcome,
           body::json ->> 'cause' AS cause,
           body::json ->> 'dying_span' AS dying_span,
           body::json #>> '{ended_at,place}' AS ended_place,
           body::json #>> '{ended_at,call}' AS ended_call,
           (body::json #>> '{host_calls,count}')::bigint AS host_calls,
           to_char(to_timestamp((body::json ->> 'started_at')::bigint / 1000.0)
                   AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS started_at,
           to_char(to_timestamp((body::json ->> 'deadline_at')::bigint / 1000.0)
                   AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS deadline_at,
           (body::json #>> '{deadline,budget_ms}')::bigint AS budget_ms,
           body::json #>> '{deadline,owner}' AS owner,
           (body::json #>> '{deadline,elapsed_ms}')::bigint AS elapsed_ms,
           (body::json #>> '{deadline,overrun_us}')::bigint AS overrun_us,
           body::json #>> '{decision,decision}' AS decision,
           body::json #>> '{decision,action}' AS action
    FROM sandglass.log WHERE kind = 'ended';
