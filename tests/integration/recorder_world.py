"""A small history for the recorder's tests: runs with steps, model calls and tool calls, written as the services would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from services.recorder.follower import Pauses, Recorder
from services.recorder.projections import Projection, all_projections
from services.recorder.tables import Tables
from shared.aggregate import append_to_newest
from shared.errors import Verdict
from shared.eventlog import EventLog
from shared.events import llm, project, run, tool
from shared.events.content import BlobRef, FileChange, Pins, ToolCall, Usage
from shared.events.envelope import Event, Fact
from shared.subjects import Aggregate
