"""What one engine consists of: which servers are ours to start, where everything is, and in which order it comes up."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

import aetherium
from aetherium.launcher import chroma, inference, llama, lock, nats, postgres, probe, state
from aetherium.launcher.ports import Ports
from aetherium.launcher.process import ProcessSpec, ProcessStatus
from aetherium.launcher.state import EngineState, Model
from aetherium.launcher.supervisor import Supervisor
from shared import config
from shared.config import Settings

_log = logging.getLogger(__name__)


def service_argv(name: str) -> tuple[str, ...]:
    """`-P`: a folder called `shared` where the user happens to stand must not be imported for ours."""
    return (sys.executable, "-P", "-m", "shared.start", f"services.{name}.app")


@dataclass(frozen=True, slots=True)
class Parts:
    """The services of an engine: each with what must be ready before it starts, and the command that runs it."""

    after: Mapping[str, tuple[str, ...]]
    argv: Callable[[str], tuple[str, ...]] = service_argv


# In the order in which they are listed. All of them start as soon as the log is there; the one that writes to the
# database waits for that too, which is sooner than finding it absent and waiting to look again.
PARTS = Parts(
    {
        "containers": ("nats",),
        "tools": ("nats",),
        "scheduler": ("nats",),
        "recorder": ("nats", "postgres"),
        "orchestrator": ("nats",),
        "gateway": ("nats",),
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before the first process starts."""

    settings: Settings
    specs: tuple[ProcessSpec, ...]
    urls: dict[str, str]
    model: Model
    moved: tuple[str, ...]  # sentences about ports that were taken
    ports: Ports


class _Planner:
    """Collects processes and addresses while the plan is made."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ports = Ports()
        self.env = base_environ()
        self.specs: list[ProcessSpec] = []
        self.urls: dict[str, str] = {}
        self.moved: list[str] = []
        self.logs = settings.data_dir / "logs"

    def port(self, name: str, preferred: int = 0, host: str = "127.0.0.1") -> int:
        port = self.ports.pick(preferred, host)
        if preferred and port != preferred:
            self.moved.append(f"port {preferred} is taken: {name} uses {port}")
        return port

    def change(self, section: str, **values: object) -> None:
        part = getattr(self.settings, section).model_copy(update=values)
        self.settings = self.settings.model_copy(update={section: part})

    def nats(self) -> None:
        if self.settings.nats.url is None:
            port = self.port("nats", 4222)
            self.specs.append(nats.spec(self.settings.data_dir, port=port, monitor_port=self.port("nats"), env=self.env))
            self.change("nats", url=f"nats://127.0.0.1:{port}")
        self.urls["nats"] = str(self.settings.nats.url)

    def postgres(self) -> None:
        dsn = self.settings.postgres.dsn
        if dsn is None:
            port = self.port("postgres", 5432)
            self.specs.append(postgres.spec(self.settings.data_dir, port=port, env=self.env, logs=self.logs))
            dsn = SecretStr(postgres.dsn(self.settings.data_dir, port))
            self.change("postgres", dsn=dsn)
        self.urls["postgres"] = dsn.get_secret_value()

    def chroma(self) -> None:
        if self.settings.chroma.url is None and self.settings.chroma.enabled:
            port = self.port("chroma", 8000)
            self.specs.append(chroma.spec(self.settings.data_dir, port=port, env=self.env))
            self.change("chroma", url=f"http://127.0.0.1:{port}")
        if self.settings.chroma.url is not None:
            self.urls["chroma"] = self.settings.chroma.url

    async def model(self, scripted: Path | bool) -> Model:
        found = self._scripted(scripted) if scripted else await self._real_model()
        if found.url is not None:
            self.change("inference", url=found.url)
            self.urls["inference"] = found.url
        return found

    def _scripted(self, scripted: Path | bool) -> Model:
        port = self.port("model")
        script = () if scripted is True else ("--script", str(scripted))
        argv = (sys.executable, "-P", "-m", "simulators.openai_server", "--port", str(port), *script)
        url = f"http://127.0.0.1:{port}"
        self.specs.append(ProcessSpec("model", argv, self.env, probe.http_ok(f"{url}/v1/models"), port=port))
        self.change("inference", model=None, api_key=None, kind="auto")
        return Model(source="scripted", text="a scripted model, not a real one", url=url)

    async def _real_model(self) -> Model:
        wanted = self.settings.inference
        if wanted.url is not None:
            return Model(source="configured", text=f"the server at {wanted.url}", url=wanted.url)
        if wanted.detect and (found := await inference.detect()):
            name, url = found
            return Model(source="detected", text=f"{name} at {url}", url=url)
        if not wanted.local_model:
            return Model(source="none", text="none: set AETHERIUM_INFERENCE__URL, or AETHERIUM_INFERENCE__LOCAL_MODEL=true")
        port = self.port("llama")
        spec = llama.spec(port=port, env=self.env, context_tokens=wanted.context_tokens, slots=wanted.concurrency)
        if spec is None:
            return Model(source="none", text=llama.MISSING)
        self.specs.append(spec)
        return Model(source="local", text=f"{llama.QWEN_CODER.name}, on this machine's CPU", url=f"http://127.0.0.1:{port}")

    def services(self, parts: Parts) -> None:
        ours = {spec.name for spec in self.specs}
        if "gateway" in parts.after:
            gateway = self.settings.gateway
            self.change("gateway", port=self.port("gateway", gateway.port, gateway.host))
            self.urls["gateway"] = f"http://{reachable(gateway.host)}:{self.settings.gateway.port}"
        for name, after in parts.after.items():
            port, env = self._place_of(name)
            host = reachable(self.settings.gateway.host if name == "gateway" else self.settings.health.host)
            ready = probe.http_ok(f"http://{host}:{port}/readyz")
            self.specs.append(ProcessSpec(name, parts.argv(name), env, ready, tuple(need for need in after if need in ours), port))

    def _place_of(self, name: str) -> tuple[int, dict[str, str]]:
        """Where a service says whether it is ready, and its environment. The gateway says it on its own port."""
        health = 0 if name == "gateway" else self.port(name, host=self.settings.health.host)
        section = self.settings.health.model_copy(update={"port": health})
        settings = self.settings.model_copy(update={"health": section})
        env = {**self.env, **config.as_environ(settings)}
        # The scheduler takes up changes of its section while it runs; what it is handed here it would keep for good.
        return health or settings.gateway.port, config.rereadable(env, settings, "scheduler") if name == "scheduler" else env


def reachable(host: str) -> str:
    """An address that leads to a server which was told to listen on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def base_environ() -> dict[str, str]:
    """This process's environment without engine settings, which each child gets resolved, and with our packages on the path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(config.PREFIX)}
    root = str(Path(aetherium.__file__).parent.parent)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    env["PYTHONPATH"] = os.pathsep.join([root, *(path for path in paths if path != root)])
    env["PYTHONUNBUFFERED"] = "1"  # what a killed process printed last is in its log
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1,localhost,::1"]))
    return env


async def make_plan(settings: Settings, *, scripted: Path | bool = False, parts: Parts = PARTS) -> Plan:
    """Decide what to start. A configured address means that the server there is not ours to start.

    `scripted`: a script file, or True for the demo's, puts the scripted model server in the model's place.
    """
    planner = _Planner(settings.model_copy(update={"data_dir": settings.data_dir.absolute()}))
    planner.nats()
    planner.postgres()
    planner.chroma()
    model = await planner.model(scripted)
    planner.services(parts)
    return Plan(planner.settings, tuple(planner.specs), planner.urls, model, tuple(planner.moved), planner.ports)


class Engine:
    """A started engine: its plan, and its processes as they are now."""

    def __init__(self, plan: Plan, listeners: Sequence[Callable[[ProcessStatus], None]]) -> None:
        self.plan = plan
        self._listeners = listeners
        self.supervisor = Supervisor(plan.specs, plan.settings.data_dir / "logs", self._changed)

    @property
    def state(self) -> EngineState:
        return state.of_this_process(self.plan.settings.data_dir, self.plan.urls, self.plan.model, self.supervisor.statuses)

    async def ready(self) -> bool:
        """Wait until every process is ready (True), or the rest is and some cannot be started."""
        return await self.supervisor.settled()

    def _changed(self, status: ProcessStatus) -> None:
        try:
            state.write(self.state)
        except OSError as error:  # a full disk: the processes matter more than what is told about them
            _log.warning("the engine's state file is not up to date: %s", error)
        for listener in self._listeners:
            listener(status)


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    scripted: Path | bool = False,
    on_change: Callable[[ProcessStatus], None] | None = None,
    parts: Parts = PARTS,
) -> AsyncGenerator[Engine]:
    """Start an engine and stop it at the end. It is starting, not ready, when the body begins: `await engine.ready()`.

    Raises:
        AlreadyRunning: another engine holds the data folder.
        CannotStart: something that is needed is not installed.
    """
    data_dir = settings.data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    with lock.held(data_dir):
        plan = await make_plan(settings, scripted=scripted, parts=parts)
        plan.settings.workspaces.mkdir(parents=True, exist_ok=True)
        engine = Engine(plan, [on_change] if on_change else [])
        state.write(engine.state)
        engine.supervisor.start()
        try:
            yield engine
        finally:
            await engine.supervisor.stop()
            plan.ports.release()
            state.remove(data_dir)
