"""Three machines in one: network namespaces on a bridge, each with a name, an sshd and a /dev/shm.

A fourth namespace has the bridge, so nothing of this is seen from outside. To ssh, MPI and pyflow
they are hosts of their own, node1 to node3 at 10.77.0.1 to 3. They share cores, files, processes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

N = 3
LIMIT_S = 120
_NET = "10.77.0"
# What a machine is: names of all, a folder for sshd, memory to share, and how ssh is to be used.
_ENTER = """
set -e
mount --make-rprivate /
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
hostname node{i}
exec "$@"
"""
_SSHD = """
Port 22
ListenAddress {address}
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
MaxStartups 100
"""
_SSH = """
Host *
  IdentityFile {folder}/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
  BatchMode yes
  ConnectTimeout 5
"""


def missing() -> str:
    """Why there can be no such machines here; empty if there can."""
    if os.getuid():
        return "network namespaces need root"
    for tool in ("ip", "unshare", "ssh", "ssh-keygen", "sshd"):
        if not _find(tool):
            return f"{tool} is missing"
    name = f"pf{os.getpid()}try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces cannot be made here"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def _find(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")


@dataclass
class Machines:
    """What ends with `close`."""

    folder: Path
    mark: str = field(default_factory=lambda: f"pf{os.getpid()}")
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        run = self._run
        names = [self._space(i) for i in range(N + 1)]
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        switch = names[0]
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for i in range(1, N + 1):
            ends = ["type", "veth", "peer", "name", "eth0", "netns", names[i]]
            run("ip", "-n", switch, "link", "add", f"to{i}", *ends)
            run("ip", "-n", switch, "link", "set", f"to{i}", "master", "br0")
            run("ip", "-n", switch, "link", "set", f"to{i}", "up")
            run("ip", "-n", names[i], "address", "add", f"{_NET}.{i}/24", "dev", "eth0")
            run("ip", "-n", names[i], "link", "set", "eth0", "up")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key"))
        known = [f"{_NET}.{i} node{i}\n" for i in range(1, N + 1)]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *known]))
        (self.folder / "ssh_config").write_text(_SSH.format(folder=self.folder))
        for i in range(1, N + 1):
            enter = _ENTER.format(folder=self.folder, i=i)
            (self.folder / f"enter{i}").write_text(enter)
            config = _SSHD.format(address=f"{_NET}.{i}", folder=self.folder)
            (self.folder / f"sshd{i}").write_text(config)
            self.boot(i)

    def boot(self, i: int) -> None:
        """Starts a machine's sshd, whose namespaces are those of all that it starts."""
        sshd = [str(_find("sshd")), "-D", "-f", str(self.folder / f"sshd{i}")]
        self._daemons.append(subprocess.Popen(self.entering(i, sshd), stdin=subprocess.DEVNULL))
        until = time.monotonic() + LIMIT_S
        probe = ["bash", "-c", f"exec 3<>/dev/tcp/{_NET}.{i}/22"]
        inside = ["ip", "netns", "exec", self._space(i), *probe]
        while subprocess.run(inside, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, "sshd has not started"
            time.sleep(0.05)

    def entering(self, i: int, command: Sequence[str]) -> list[str]:
        """A command that runs another one on machine i."""
        space = ["ip", "netns", "exec", self._space(i), "unshare", "--mount", "--uts", "--ipc"]
        return [*space, "sh", str(self.folder / f"enter{i}"), *command]

    def pull(self, i: int) -> None:
        """The cable of machine i."""
        self._run("ip", "-n", self._space(0), "link", "set", f"to{i}", "down")

    def plug(self, i: int) -> None:
        self._run("ip", "-n", self._space(0), "link", "set", f"to{i}", "up")

    def processes(self, i: int) -> dict[int, str]:
        """All of machine i, but its sshd."""
        done = subprocess.run(
            ["ip", "netns", "pids", self._space(i)], capture_output=True, text=True, check=True
        )
        found = {}
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line and "sshd" not in line:
                    found[pid] = line
        return found

    def kill(self, i: int) -> None:
        """Machine i loses power: nobody hears of it again."""
        self.pull(i)
        done = subprocess.run(
            ["ip", "netns", "pids", self._space(i)], capture_output=True, text=True, check=True
        )
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for i in range(1, N + 1):
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):
                self.kill(i)
        for daemon in self._daemons:
            daemon.wait(LIMIT_S)
        for i in range(N + 1):
            subprocess.run(["ip", "netns", "del", self._space(i)], check=False)

    def _space(self, i: int) -> str:
        return f"{self.mark}n{i}"

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"


@contextlib.contextmanager
def machines() -> Iterator[Machines]:
    """node1 to node3, until this ends."""
    with tempfile.TemporaryDirectory(prefix="pyflow-machines") as folder:
        found = Machines(Path(folder))
        try:
            found.start()
            yield found
        finally:
            found.close()
