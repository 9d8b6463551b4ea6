"""No process of the engine talks to anything but this machine, and none listens to anybody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import psutil

from shared.config import ChromaSettings
from shared.runstate import Status
from simulators.script import DEFAULT_SCRIPT
from tests.e2e.engine import opened, settings_in
from tests.requirements import covers
from tests.support.waiting import until

EVERY_S = 0.01
LISTENING = "0A"
Ip = IPv4Address | IPv6Address
IsHome = Callable[[Ip], bool]


@dataclass(frozen=True, slots=True)
class Seen:
    """A socket that leads elsewhere: whose it is and where it leads."""

    process: str
    what: str


def is_loopback(ip: Ip) -> bool:
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def address(text: str) -> tuple[Ip, int]:
    """An address as the kernel's tables write it: words of the host's byte order, in hex."""
    ip, port = text.split(":")
    words = [bytes.fromhex(ip[at : at + 8])[::-1] for at in range(0, len(ip), 8)]
    return ip_address(b"".join(words)), int(port, 16)


def suspicious(is_home: IsHome) -> dict[str, str]:
    """The sockets of this machine that lead elsewhere, by inode: peers, listeners, and UDP that could go anywhere."""
    found: dict[str, str] = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            (here, here_port), (there, there_port), state, inode = address(fields[1]), address(fields[2]), fields[3], fields[9]
            if kind.startswith("tcp") and state == LISTENING:
                if not is_home(here):
                    found[inode] = f"listens on {here}:{here_port}"
            elif there_port or kind.startswith("tcp"):
                if not is_home(there):
                    found[inode] = f"{kind} to {there}:{there_port}"
            else:
                found[inode] = f"unconnected {kind} from {here}:{here_port}"
    found.pop("0", None)  # belongs to nobody any more
    return found


def sockets_of(process: psutil.Process) -> Iterator[str]:
    """The inodes of the sockets that a process has open."""
    try:
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return


@dataclass
class Watch:
    """Looks at the sockets of this process's descendants, again and again."""

    is_home: IsHome = is_loopback
    samples: int = 0
    seen: set[Seen] = field(default_factory=set[Seen])
    processes: set[str] = field(default_factory=set[str])

    def look(self) -> None:
        foreign = suspicious(self.is_home)
        self.samples += 1
        if not foreign and self.samples % 20:
            return  # whose they are is only worth asking when there are some
        for process in psutil.Process().children(recursive=True):
            try:
                name = " ".join(process.cmdline()[:5])
            except psutil.Error:
                continue
            self.processes.add(name)
            self.seen |= {Seen(name, foreign[inode]) for inode in sockets_of(process) if inode in foreign}


@contextmanager
def watching(watch: Watch) -> Generator[Watch]:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(EVERY_S):
            watch.look()

    thread = threading.Thread(target=run, name="sockets")
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


@contextmanager
def child(code: str, *arguments: object) -> Generator[None]:
    """A process that does something with sockets and then stays."""
    argv = (sys.executable, "-S", "-c", f"import socket, sys\n{code}\nprint(flush=True)\nsys.stdin.read()", *map(str, arguments))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def test_the_watch_sees_a_connection_a_listener_and_a_datagram_socket_that_lead_elsewhere() -> None:
    # For this check 127.0.0.2 is elsewhere, so that nothing leaves the machine.
    def is_home(ip: Ip) -> bool:
        return ip == ip_address("127.0.0.1")

    with socket.create_server(("127.0.0.2", 0)) as elsewhere:
        port, udp = elsewhere.getsockname()[1], "kept = socket.socket(type=socket.SOCK_DGRAM)"
        cases = {
            f"tcp to 127.0.0.2:{port}": ("kept = socket.create_connection(('127.0.0.2', int(sys.argv[1])))", port),
            "listens on 127.0.0.3:": ("kept = socket.create_server(('127.0.0.3', 0))",),
            "listens on ::": ("kept = socket.socket(socket.AF_INET6); kept.bind(('::', 0)); kept.listen()",),
            f"udp to 127.0.0.2:{port}": (f"{udp}; kept.connect(('127.0.0.2', int(sys.argv[1])))", port),
            "unconnected udp from 0.0.0.0:": (f"{udp}; kept.bind(('', 0))",),
        }
        for expected, (code, *arguments) in cases.items():
            watch = Watch(is_home)
            with child(str(code), *arguments):
                watch.look()
            assert [seen.what.startswith(expected) for seen in watch.seen] == [True], (expected, watch.seen)

        home = Watch(lambda ip: ip.is_loopback)
        with child("kept = socket.create_connection(('127.0.0.2', int(sys.argv[1])))", port):
            home.look()
        assert home.seen == set()


@covers("stack.quiet")
async def test_no_process_of_the_engine_reaches_out_or_lets_others_in_during_a_run(tmp_path: Path) -> None:
    with watching(Watch()) as watch:
        async with opened(settings_in(tmp_path, chroma=ChromaSettings()), script=DEFAULT_SCRIPT) as engine:
            ended = await engine.run("Write primes.py and run it.", template="quick-script")
            assert ended.status is Status.COMPLETED, ended.reason
            enough = watch.samples + 50
            await until(lambda: watch.samples > enough)
            names = {status.name for status in engine.engine.supervisor.statuses}
            watched = {name for name in names if any(name in process for process in watch.processes)}
    assert watch.seen == set()
    assert watch.samples > 100
    assert watched >= names - {"model"}, f"not watched: {names - watched}"
    assert any("openai_server" in process for process in watch.processes)
