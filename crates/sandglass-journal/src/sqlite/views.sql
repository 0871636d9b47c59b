-- For people with a SQL prompt. Made anew with each format, and read by nothing here.
DROP VIEW IF EXISTS transitions;
DROP VIEW IF EXISTS dispatches;
DROP VIEW IF EXISTS endings;
DROP VIEW IF EXISTS log;

CREATE VIEW log AS
    SELECT position,
           strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at,
           entity_type || '/' || entity_id AS entity,
           sequence, kind, body
    FROM records;
CREATE VIEW transitions AS
    SELECT position, at, entity, sequence,
           body ->> '$.action' AS action,
           body ->> '$.from' AS from_state,
           body ->> '$.to' AS to_state,
           body ->> '$.cause.cause' AS cause,
           body ->> '$.trace' AS trace,
           body -> '$.params' AS params
    FROM log WHERE kind = 'transition';
CREATE VIEW dispatches AS
    SELECT position, at, entity, sequence,
           body ->> '$.expected' AS expected,
           body ->> '$.dispatch' AS dispatch,
           body ->> '$.attempt' AS attempt,
           body ->> '$.integration' AS integration,
           body ->> '$.module' AS module,
           body ->> '$.module_hash' AS module_hash,
           body ->> '$.spec' AS spec,
           body ->> '$.action' AS action,
           body -> '$.params' AS params,
           body ->> '$.state' AS state,
           body -> '$.variables' AS variables,
           body -> '$.config' AS config,
           body ->> '$.budget_ms' AS budget_ms,
           body ->> '$.owner' AS owner,
           body ->> '$.asker' AS asker,
           body ->> '$.trace' AS trace
    FROM log WHERE kind = 'dispatched';
CREATE VIEW endings AS
    SELECT position, at, entity, sequence,
           body ->> '$.dispatch' AS dispatch,
           body ->> '$.attempt' AS attempt,
           body ->> '$.outcome.outcome' AS outcome,
           body ->> '$.cause' AS cause,
           body ->> '$.dying_span' AS dying_span,
           body ->> '$.ended_at.place' AS ended_place,
           body ->> '$.ended_at.call' AS ended_call,
           body ->> '$.host_calls.count' AS host_calls,
           strftime('%Y-%m-%dT%H:%M:%fZ', (body ->> '$.started_at') / 1000.0, 'unixepoch')
               AS started_at,
           strftime('%Y-%m-%dT%H:%M:%fZ', (body ->> '$.deadline_at') / 1000.0, 'unixepoch')
               AS deadline_at,
           body ->> '$.deadline.budget_ms' AS budget_ms,
           body ->> '$.deadline.owner' AS owner,
           body ->> '$.deadline.elapsed_ms' AS elapsed_ms,
           body ->> '$.deadline.overrun_us' AS overrun_us,
           body ->> '$.decision.decision' AS decision,
           body ->> '$.decision.action' AS action
    FROM log WHERE kind = 'ended';
