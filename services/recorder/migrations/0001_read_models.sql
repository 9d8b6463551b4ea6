-- The read models: everything here is rebuilt from the log, so nothing here may hold what the log does not.
-- No column takes its value from the clock or a counter of the database: a rebuild must give the same rows.

CREATE TABLE positions (
    projection text PRIMARY KEY,
    seq bigint NOT NULL  -- of the last fact that the projection's rows account for
);

CREATE TABLE projects (
    project_id bigint PRIMARY KEY,
    name text NOT NULL,
    template_id text NOT NULL,
    description text NOT NULL,
    workspace_tier text NOT NULL,
    created_at timestamptz NOT NULL,
    seq bigint NOT NULL
);

CREATE TABLE runs (
    run_id text PRIMARY KEY,
    status text NOT NULL,
    project_id bigint NOT NULL,
    template_id text NOT NULL,
    message text NOT NULL,
    source_agent text NOT NULL,
    owner text NOT NULL,
    resumes integer NOT NULL,
    submitted_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    turns bigint NOT NULL,
    model_calls integer NOT NULL,
    model_calls_done integer NOT NULL,
    tool_calls integer NOT NULL,
    tool_calls_done integer NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    steps integer NOT NULL,
    steps_done integer NOT NULL,
    reply text NOT NULL,
    code text NOT NULL,
    reason text NOT NULL,
    files text[] NOT NULL,
    cancel_requested boolean NOT NULL,
    seq bigint NOT NULL  -- of the last fact that the row accounts for
);
CREATE INDEX runs_by_project ON runs (project_id, submitted_at);
CREATE INDEX runs_by_status ON runs (status, submitted_at);

CREATE TABLE steps (
    run_id text NOT NULL,
    key text NOT NULL,
    agent text NOT NULL,
    title text NOT NULL,
    status text NOT NULL,  -- running, completed, failed
    started_at timestamptz,
    ended_at timestamptz,
    code text NOT NULL,
    reason text NOT NULL,
    files text[] NOT NULL,
    started_seq bigint,
    ended_seq bigint,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE conversation (
    seq bigint PRIMARY KEY,
    run_id text NOT NULL,
    agent text NOT NULL,
    role text NOT NULL,
    content text NOT NULL,
    blob_sha256 text,  -- where `content` is only the beginning: the whole is this blob
    blob_size bigint,
    tool_calls jsonb,  -- of an assistant's turn, in the OpenAI form
    call_id text,      -- the model call or tool call that this message answers
    prompt_tokens bigint,
    completion_tokens bigint,
    cached_tokens bigint,
    at timestamptz NOT NULL
);
CREATE INDEX conversation_by_run ON conversation (run_id, seq);

-- Whose call an answer belongs to: the answer itself does not say. Kept by the projection `conversation`.
CREATE TABLE call_agents (
    run_id text NOT NULL,
    call_id text NOT NULL,
    agent text NOT NULL,
    PRIMARY KEY (run_id, call_id)
);

CREATE TABLE tool_audit (
    run_id text NOT NULL,
    call_id text NOT NULL,
    agent text,
    tool text NOT NULL,
    arguments jsonb,
    arguments_sha256 text,  -- where the arguments are a blob
    server text,
    tier text,
    owner text,
    verdict text NOT NULL,  -- requested, started, completed, denied, failed, interrupted
    is_error boolean NOT NULL,
    layer text,   -- that denied it
    code text,    -- of its failure
    result text,  -- the beginning of it; all of it for an elevated tool
    result_chars bigint,
    result_sha256 text,  -- where the result is a blob
    files text[] NOT NULL,
    changes jsonb NOT NULL,  -- path, before_sha256 and after_sha256 of each changed file
    duration_ms double precision,
    requested_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    requested_seq bigint,
    ended_seq bigint,
    PRIMARY KEY (run_id, call_id)
);

CREATE TABLE llm_calls (
    run_id text NOT NULL,
    call_id text NOT NULL,
    key text,
    agent text,
    turn bigint,
    priority text,
    requested_model text,
    requested_slot text,
    status text NOT NULL,  -- requested, queued, dispatched, completed, failed
    model text,
    slot text,
    attempts integer NOT NULL,
    retries integer NOT NULL,
    prompt_tokens bigint,
    completion_tokens bigint,
    cached_tokens bigint,
    tool_calls integer,
    finish_reason text,
    code text,
    failure text,
    prompt_sha256 text,
    queued_ms double precision,
    first_token_ms double precision,
    duration_ms double precision,
    requested_at timestamptz,
    dispatched_at timestamptz,
    ended_at timestamptz,
    requested_seq bigint,
    ended_seq bigint,
    PRIMARY KEY (run_id, call_id)
);
