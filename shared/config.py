"""Settings of the engine: environment `AETHERIUM_…` (nested with `__`), then `aetherium.yaml`, then defaults.

Read once by each process's `app.py`; values are passed on, not the settings object. A key that nothing
knows, or a value that does not fit, stops the start with a message that names it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, SecretStr, ValidationError, model_validator

from shared.errors import Fault
from shared.events.content import Budgets
from shared.scheduler_settings import SchedulerSettings
from shared.section import Section, to_json

PREFIX = "AETHERIUM_"
FILE = "aetherium.yaml"
CONFIG = f"{PREFIX}CONFIG"

Port = int


class BadSetting(Fault):
    """A setting is unknown or wrong; the message names it and where it came from."""

    code = "config.invalid"


class NatsSettings(Section):
    """Where the log is. Without a URL the launcher starts its own server."""

    url: str | None = None


class PostgresSettings(Section):
    """Where the read models are. Without a DSN the launcher starts its own server."""

    dsn: SecretStr | None = None


class ChromaSettings(Section):
    """Where the vector store is. Without a URL the launcher starts its own; `enabled: false` leaves it out."""

    url: str | None = None
    enabled: bool = True


class GatewaySettings(Section):
    host: str = "127.0.0.1"
    port: Port = Field(default=5257, ge=0, le=65535)
    token: SecretStr | None = None
    max_body_bytes: PositiveInt = 1_000_000
    max_message_chars: PositiveInt = 100_000
    max_chat_bytes: PositiveInt = 32_000_000  # of a chat that is relayed, pictures and all
    relay_idle_s: PositiveFloat = 60.0  # a chat client's lease is given back after so long without a request


class InferenceSettings(Section):
    """The inference server. Without a URL: one that answers on a usual port, else the local model."""

    url: str | None = None
    model: str | None = None
    api_key: SecretStr | None = None
    kind: Literal["auto", "openai", "llama-server"] = "auto"
    concurrency: PositiveInt = 1
    idle_timeout_s: PositiveFloat = 120.0  # longest silence inside one answer
    detect: bool = True  # look for LM Studio, llama-server and Ollama on loopback
    local_model: bool = True  # start the bundled llama-server when nothing else is there
    context_tokens: PositiveInt = 8192
    turns: Literal["auto", "guided", "native"] = "auto"  # guided: action by action under a JSON schema


class OrchestratorSettings(Section):
    ack_wait_s: PositiveFloat = 4.0  # an orchestrator silent for so long loses its runs to another
    budgets: Budgets = Budgets()


class DecisionSettings(Section):
    """The decision layer (KS 6.10): small questions put to a model that is loaded already. Off, the callers' own rules decide."""

    enabled: bool = False
    model: str | None = None  # None: whatever is loaded on the slot of the role `decision`
    timeout_s: PositiveFloat = 10.0  # for everything, the lease included
    min_confidence: float = Field(default=0.6, ge=0, le=1)  # below it the rule's choice holds


class HealthSettings(Section):
    """Where this process answers /healthz, /readyz and /metrics. Port 0 = it does not."""

    host: str = "127.0.0.1"
    port: Port = Field(default=0, ge=0, le=65535)


class TelemetrySettings(Section):
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    otlp_endpoint: str | None = None  # spans are exported only when this is set


class Settings(Section):
    data_dir: Path = Path(".aetherium")
    instance: str = "0"  # the name of this copy of a process; stable over its restarts
    nats: NatsSettings = NatsSettings()
    postgres: PostgresSettings = PostgresSettings()
    chroma: ChromaSettings = ChromaSettings()
    gateway: GatewaySettings = GatewaySettings()
    inference: InferenceSettings = InferenceSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    decision: DecisionSettings = DecisionSettings()
    health: HealthSettings = HealthSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def workspaces(self) -> Path:
        """The folder of all workspaces; a project's is the sub-folder with its id."""
        return self.data_dir.absolute() / "workspaces"

    @model_validator(mode="after")
    def _loopback_or_token(self) -> Settings:
        if not is_loopback(self.gateway.host) and self.gateway.token is None:
            raise ValueError(f"gateway.host {self.gateway.host!r} is not loopback: set gateway.token, or bind to 127.0.0.1")
        return self


def is_loopback(host: str) -> bool:
    """Whether a bind to `host` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """The settings of this process.

    `file` defaults to `AETHERIUM_CONFIG`, else `aetherium.yaml` in the current folder where it exists.

    Raises:
        BadSetting: a key is unknown, a value does not fit, or the file cannot be read.
    """
    env = dict(os.environ if environ is None else environ)
    path = file or file_of(env)
    tree = _from_file(path, must_exist=env.pop(CONFIG, None) is not None or file is not None)
    _merge(tree, _from_environ(env))
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise BadSetting(_explain(error, env), field=_first_place(error)) from error


def file_of(environ: Mapping[str, str] | None = None) -> Path:
    """The file that settings are read from; it need not exist unless `AETHERIUM_CONFIG` names it."""
    return Path((os.environ if environ is None else environ).get(CONFIG) or FILE)


def _from_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if must_exist:
            raise BadSetting(f"the configuration file {str(path)!r} does not exist", field="AETHERIUM_CONFIG") from error
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"the configuration file {str(path)!r} cannot be read: {error}", field=str(path)) from error
    try:
        tree: object = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise BadSetting(f"{path}: not valid YAML: {error}", field=str(path)) from error
    if not isinstance(tree, dict):
        raise BadSetting(f"{path}: expected keys and values, such as 'gateway:\\n  port: 5257'", field=str(path))
    return cast(dict[str, Any], tree)


def _from_environ(env: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in env.items():
        if not name.startswith(PREFIX) or name.startswith(f"{PREFIX}TEST_"):
            continue
        *sections, key = name.removeprefix(PREFIX).lower().split("__")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = None if value == "null" else value
    return tree


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], cast(dict[str, Any], value))
        else:
            base[key] = value


def _first_place(error: ValidationError) -> str:
    return ".".join(str(part) for part in error.errors()[0]["loc"])


def _explain(error: ValidationError, env: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        variable = PREFIX + "__".join(str(part) for part in problem["loc"]).upper()
        source = f"environment variable {variable}" if variable in env else f"setting {place!r}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{source} is not known.{_nearest(problem['loc'])}")
        elif place:
            lines.append(f"{source}: {problem['msg']} (got {problem['input']!r})")
        else:
            lines.append(problem["msg"].removeprefix("Value error, "))
    return "\n".join(lines)


def _nearest(loc: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Settings
    parts = iter(loc[:-1])
    for part in parts:
        annotation: Any = model.model_fields[str(part)].annotation
        if get_origin(annotation) is dict:  # a table of sections: the next part is a name of the user's
            annotation, _ = get_args(annotation)[1], next(parts, None)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        model = annotation
    close = difflib.get_close_matches(str(loc[-1]), list(model.model_fields), n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known here: {', '.join(sorted(model.model_fields))}."


def as_environ(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, for a child process that must read the same ones."""
    flat: dict[str, str] = {}

    def walk(section: BaseModel, prefix: str) -> None:
        for name in type(section).model_fields:
            value = getattr(section, name)
            key = f"{prefix}{name.upper()}"
            if isinstance(value, BaseModel):
                walk(value, f"{key}__")
            elif isinstance(value, SecretStr):
                flat[key] = value.get_secret_value()
            elif value is None:
                flat[key] = "null"
            elif isinstance(value, dict | tuple):
                flat[key] = to_json(value)
            else:
                flat[key] = str(value).lower() if isinstance(value, bool) else str(value)

    walk(settings, PREFIX)
    return flat


def rereadable(env: Mapping[str, str], settings: Settings, section: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """A child's `env` in which one section is as it was given, not as it was read, so that the child can follow the file's changes.

    `environ` is where it was given. What came from elsewhere than there and the file stays as it was read.
    """
    outer, prefix = os.environ if environ is None else environ, f"{PREFIX}{section.upper()}__"
    given = {name: value for name, value in outer.items() if name.startswith(prefix)}
    if outer.get(CONFIG):
        given[CONFIG] = str(file_of(outer).absolute())
    open_env = {**{name: value for name, value in env.items() if not name.startswith(prefix)}, **given}
    try:
        is_same = getattr(load(open_env), section) == getattr(settings, section)
    except BadSetting:
        is_same = False
    return open_env if is_same else dict(env)
