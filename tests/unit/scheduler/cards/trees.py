"""Small copies of /sys and /proc, laid out as the kernel does: cards as links into /sys/devices, open files as links to /dev/dri."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAVI, ARC, AMPERE = ("0x1002", "0x744c"), ("0x8086", "0xe20b"), ("0x10de", "0x2204")


@dataclass
class Tree:
    """A root to lay files below."""

    root: Path
    _fds: dict[int, int] = field(default_factory=dict[int, int])

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def card(
        self,
        node: str,
        pci: str = "0000:03:00.0",
        *,
        driver: str = "amdgpu",
        ids: tuple[str, str] = NAVI,
        above: tuple[str, ...] = ("0000:00:01.0",),
        files: Mapping[str, str] | None = None,
    ) -> str:
        """A card below bridges; gives its device's folder. `files` lie in that folder, those with `node/` in the card's."""
        device = "/".join(("sys/devices/pci0000:00", *above, pci))
        self.write(f"{device}/vendor", f"{ids[0]}\n")
        self.write(f"{device}/device", f"{ids[1]}\n")
        self.write(f"{device}/uevent", f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME={pci}\nMODALIAS=pci:v00\n")
        for name, text in (files or {}).items():
            self.write(f"{device}/drm/{node}/{name[5:]}" if name.startswith("node/") else f"{device}/{name}", f"{text}\n")
        for each in (node, f"renderD{128 + int(node[4:])}"):
            (self.root / device / "drm" / each).mkdir(parents=True, exist_ok=True)
        (self.root / device / "drm" / node / "device").symlink_to("../..")
        drm = self.root / "sys/class/drm"
        drm.mkdir(parents=True, exist_ok=True)
        (drm / node).symlink_to(os.path.relpath(self.root / device / "drm" / node, drm))
        (drm / f"{node}-DP-1").mkdir()  # a connector
        return device

    def process(self, pid: int, name: str, *fdinfos: str, target: str = "/dev/dri/renderD128") -> None:
        """A process with open files: one ordinary, and one for each fdinfo."""
        self.write(f"proc/{pid}/comm", f"{name}\n")
        if not (self.root / f"proc/{pid}/fd").exists():
            self._open(pid, "/dev/null", "pos:\t0\nflags:\t02\nmnt_id:\t3\n")
        for text in fdinfos:
            self._open(pid, target, f"pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t685\n{text}")

    def _open(self, pid: int, target: str, text: str) -> None:
        number = self._fds.get(pid, 0)
        self._fds[pid] = number + 1
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).symlink_to(target)
        self.write(f"proc/{pid}/fdinfo/{number}", text)


def amdgpu(client: int, vram: str, *, gfx_ns: int = 0, pci: str = "0000:03:00.0") -> str:
    """As amdgpu writes it, the old word for memory included."""
    return (
        f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{pci}\npasid:\t32770\n"
        f"drm-total-vram:\t{vram}\ndrm-shared-vram:\t0\ndrm-memory-vram:\t{vram}\ndrm-memory-gtt: \t9999 KiB\ndrm-memory-cpu: \t0 KiB\n"
        f"amd-memory-visible-vram:\t16 KiB\ndrm-engine-gfx:\t{gfx_ns} ns\ndrm-engine-compute:\t0 ns\n"
    )


def xe(client: int, vram: str, *, ccs: int = 0, passed: int = 0, total: str | None = None, pci: str = "0000:03:00.0") -> str:
    """As xe writes it: cycles beside those that passed, and four compute engines."""
    return (
        f"drm-driver:\txe\ndrm-client-id:\t{client}\ndrm-pdev:\t{pci}\n"
        f"drm-total-system:\t0\ndrm-resident-gtt:\t192 KiB\ndrm-total-vram0:\t{total or vram}\ndrm-shared-vram0:\t16 MiB\n"
        f"drm-active-vram0:\t0\ndrm-resident-vram0:\t{vram}\ndrm-cycles-rcs:\t0\ndrm-total-cycles-rcs:\t{passed}\n"
        f"drm-cycles-ccs:\t{ccs}\ndrm-total-cycles-ccs:\t{passed}\ndrm-engine-capacity-ccs:\t4\n"
    )


def i915(client: int, local: str, *, render_ns: int = 0, video_ns: int = 0, pci: str = "0000:03:00.0") -> str:
    return (
        f"drm-driver:\ti915\ndrm-client-id:\t{client}\ndrm-pdev:\t{pci}\n"
        f"drm-total-system0:\t44 MiB\ndrm-total-local0:\t{local}\ndrm-engine-render:\t{render_ns} ns\n"
        f"drm-engine-video:\t{video_ns} ns\ndrm-engine-capacity-video:\t2\n"
    )


AMD_FILES = {
    "mem_info_vram_total": str(24 * 2**30),
    "mem_info_vram_used": str(3 * 2**30 + 1),
    "gpu_busy_percent": "37",
    "hwmon/hwmon4/name": "amdgpu",
    "hwmon/hwmon4/temp1_input": "61000",
    "hwmon/hwmon4/temp1_label": "edge",
    "hwmon/hwmon4/temp2_input": "78000",
    "hwmon/hwmon4/temp2_label": "junction",
    "hwmon/hwmon4/temp3_input": "70000",
    "hwmon/hwmon4/temp3_label": "mem",
    "hwmon/hwmon4/power1_average": "215000000",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "power/runtime_status": "active",
}


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything; for other users nothing changes."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)
