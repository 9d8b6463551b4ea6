-- The decision layer's decisions: one row each, whoever's word held.

CREATE TABLE decision_logs (
    decision_id text PRIMARY KEY,
    caller text NOT NULL,
    tier integer NOT NULL,
    question text NOT NULL,
    options text[] NOT NULL,
    fallback text NOT NULL,  -- what the caller's own rule chose
    choice text NOT NULL,
    source text NOT NULL,    -- model, rule
    outcome text NOT NULL,   -- decided, no_model, busy, timeout, failed, unreadable, unsure
    reason text NOT NULL,
    confidence double precision,
    run_id text,
    slot text NOT NULL,
    model text NOT NULL,
    lease_id text NOT NULL,
    prompt_sha256 text NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    duration_ms double precision NOT NULL,
    at timestamptz NOT NULL,
    seq bigint NOT NULL
);
CREATE INDEX decision_logs_by_time ON decision_logs (at);
CREATE INDEX decision_logs_by_run ON decision_logs (run_id, seq);
