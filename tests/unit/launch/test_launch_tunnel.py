"""One local port leads to the endpoint wherever the head is: straight, or through a stand-in for ssh."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.launch.tunnel import forward_argv
from exahpc.launch.whereabouts import Whereabouts, remote_script
from exahpc.wire.folder import Endpoint, Folder, HeadRecord, write_atomic
from tests.live import until

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n[launcher]\nkind = "local"\n'

SSH = """#!{python}
# As far as the tunnel needs it: `-L SOCKET:HOST:PORT` from a socket to a port, or a command run "over there".
import os, socket, sys, threading
with open({log!r}, "a") as log:
    print(os.getpid(), *sys.argv[1:], file=log)
if os.path.exists({refuse!r}):
    sys.exit("Permission denied (publickey).")
if "-L" not in sys.argv:
    os.execve("/bin/sh", ["sh", "-c", "exec " + sys.argv[-1]], os.environ | {{"EXAHPC_HOME": {home!r}}})
path, host, port = sys.argv[sys.argv.index("-L") + 1].split(":")

def carry(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen()
while True:
    near, _ = listening.accept()
    try:
        far = socket.create_connection((host, int(port)))
    except OSError:
        near.close()
        continue
    for pair in ((near, far), (far, near)):
        threading.Thread(target=carry, args=pair, daemon=True).start()
"""


class Head(socketserver.ThreadingTCPServer):
    """Answers what it is told, behind its own name."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while data := self.request.recv(65536):
                    self.request.sendall(name.encode() + b":" + data)

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def publish(self, folder: Folder, epoch: int) -> None:
        host, port = self.server_address[:2]
        folder.publish_head(HeadRecord(epoch, "tcp://127.0.0.1:1", socket.gethostname(), 1))
        folder.publish_endpoint(Endpoint(f"https://{host!s}:{port}/v1", str(host), int(port), "/ca"))


class Site:
    """A deployment's folder, a stand-in for ssh on PATH, and the command as a process."""

    def __init__(self, home: Path) -> None:
        self.folder = Folder.create(home / "d", TOML)
        write_atomic(self.folder.path / "secrets" / "ca.crt", b"the certificate\n")
        self.log, self.refuse, self.said = home / "ssh.log", home / "refuse", home / "said"
        (home / "bin").mkdir()
        ssh = home / "bin" / "ssh"
        words = {"python": sys.executable, "log": str(self.log), "refuse": str(self.refuse), "home": str(home)}
        ssh.write_text(SSH.format(**words))
        ssh.chmod(0o755)
        self.env = os.environ | {
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "EXAHPC_HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def tunnel(self, *argv: str) -> int:
        """Start the command; returns its port when the way stands."""
        with self.said.open("wb") as said:
            self.process = process = subprocess.Popen(
                [sys.executable, "-m", "exahpc.cli", "tunnel", *argv], env=self.env, stdout=said, stderr=said
            )
        until("the tunnel says its URL", lambda: "OPENAI_BASE_URL" in self.words() or process.poll() is not None)
        assert process.poll() is None, self.words()
        line = next(line for line in self.words().splitlines() if "://127.0.0.1:" in line)
        return int(line.rpartition(":")[2].partition("/")[0])

    def words(self) -> str:
        return self.said.read_text()

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        yield made
    finally:
        made.end()


def ask(port: int) -> str:
    """What answers through the tunnel; "" when nobody does."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"hi")
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    return ""


@pytest.mark.parametrize("via", [(), ("--via", "me@login")])
def test_the_same_port_leads_to_a_head_that_moved(site: Site, via: tuple[str, ...]) -> None:
    with Head("one") as one, Head("two") as two:
        one.publish(site.folder, 1)
        port = site.tunnel("d", *via)
        assert ask(port) == "one:hi"
        assert f"OPENAI_BASE_URL=https://127.0.0.1:{port}/v1" in site.words()
        with socket.create_connection(("127.0.0.1", port), 10) as old:
            old.sendall(b"x")
            assert old.recv(100) == b"one:x"
            one.shutdown()
            two.publish(site.folder, 2)
            until("the other head answers", lambda: ask(port) == "two:hi")
            assert old.recv(100) == b""  # who was connected to the old head is told
        assert "the head has moved" in site.words()
        assert bool(site.calls()) is bool(via)
        one.shutdown()
        two.shutdown()


def test_a_laptop_needs_nothing_but_ssh(site: Site, tmp_path: Path) -> None:
    """The folder is read on the other side, and the certificate is kept here."""
    site.env["EXAHPC_HOME"] = str(tmp_path / "nothing")
    with Head("one") as one, Head("two") as two:
        one.publish(site.folder, 1)
        port = site.tunnel("d", "--via", "me@login")
        assert ask(port) == "one:hi"
        kept = tmp_path / "cache" / "exahpc" / "tunnels" / "d.crt"
        assert kept.read_text() == "the certificate\n"
        assert f"SSL_CERT_FILE={kept}" in site.words()
        assert "OPENAI_API_KEY=$(ssh me@login exahpc key d)" in site.words()
        two.publish(site.folder, 2)
        until("the other head answers", lambda: ask(port) == "two:hi")
        one.shutdown()
        two.shutdown()


def test_an_ssh_that_ends_is_started_again(site: Site) -> None:
    with Head("one") as one:
        one.publish(site.folder, 1)
        port = site.tunnel("d", "--via", "me@login")
        (call,) = site.calls()
        os.kill(int(call.split()[0]), signal.SIGKILL)
        until("another ssh", lambda: len(site.calls()) == 2)
        until("the way stands again", lambda: ask(port) == "one:hi")
        assert site.process is not None
        site.process.terminate()
        site.process.wait(30)
        ssh = Path("/proc", site.calls()[1].split()[0])
        until("no ssh is left behind", lambda: not ssh.exists())
        one.shutdown()


def test_an_ssh_that_is_not_let_in_ends_the_command_with_its_words(site: Site) -> None:
    site.refuse.touch()
    with Head("one") as one:
        one.publish(site.folder, 1)
        done = subprocess.run(
            [sys.executable, "-m", "exahpc.cli", "tunnel", "d", "--via", "me@login"],
            env=site.env, text=True, capture_output=True, timeout=60,
        )  # fmt: skip
        one.shutdown()
    assert done.returncode == 1
    assert "Permission denied" in done.stderr
    assert "is not reached from here, nor by ssh" in done.stderr


@pytest.mark.parametrize(
    ("host", "via", "ends"),
    [
        ("10.0.0.7", "me@login", ["/s:10.0.0.7:80", "--", "me@login"]),
        ("10.0.0.7", None, ["/s:10.0.0.7:80", "--", "n7"]),
        ("fd00::7", "me@login", ["/s:[fd00::7]:80", "--", "me@login"]),
        ("127.0.0.1", None, ["/s:127.0.0.1:80", "--", "n7"]),
        ("127.0.0.1", "me@login", ["-J", "me@login", "-L", "/s:127.0.0.1:80", "--", "n7"]),
    ],
)
def test_ssh_goes_by_way_of_the_login_node_and_only_the_head_reaches_its_loopback(
    host: str, via: str | None, ends: list[str]
) -> None:
    where = Whereabouts(Endpoint("", host, 80, None), "n7")
    assert list(forward_argv(where, via, Path("/s")))[-len(ends) :] == ends


def test_what_another_machine_calls_itself_is_no_option_of_ssh() -> None:
    where = Whereabouts(Endpoint("", "127.0.0.1", 80, None), "-oProxyCommand=touch pwned")
    assert forward_argv(where, "me@login", Path("/s"))[-2:] == ("--", where.head)


def test_the_name_is_quoted_for_the_other_side(tmp_path: Path) -> None:
    script = remote_script("$(touch pwned); x")
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert not (tmp_path / "pwned").exists()
