"""`python3 requirements/bootstrap.py DIR`: a virtual environment with pip, wherever Python came without ensurepip.

Debian's python3 has neither pip nor ensurepip. Tried in this order: the interpreter's own ensurepip; apt, as root;
the package index that pip is configured for; the pip wheel inside Debian's package, unpacked without root. The
standard library only. Ends with one line that says what to ask for when nothing works.
"""

from __future__ import annotations

import configparser
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

LEAST = (3, 11)


def main() -> None:
    if sys.version_info < LEAST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"exahpc needs Python {LEAST[0]}.{LEAST[1]} or newer, but {sys.executable} is {found}: "
                 f"make PYTHON=python3.12 ...")  # fmt: skip
    target = Path(sys.argv[1])
    if has_pip(target):
        return
    for way in (with_ensurepip, with_apt, with_index, with_debian_wheel):
        shutil.rmtree(target, ignore_errors=True)
        try:
            way(target)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            print(f"{way.__name__.replace('_', ' ')}: {error}", file=sys.stderr)
            continue
        if has_pip(target):
            return
    shutil.rmtree(target, ignore_errors=True)
    sys.exit("cannot make a virtual environment with pip: ask for the package python3-venv "
             "(apt-get install python3-venv), or set PIP_INDEX_URL to your package index")  # fmt: skip


def run(*argv: str | Path, **options: object) -> None:
    subprocess.run([*map(str, argv)], check=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def has_pip(target: Path) -> bool:
    """Whether this environment works."""
    python = target / "bin" / "python"
    command = [str(python), "-m", "pip", "--version"]
    return python.exists() and subprocess.run(command, capture_output=True).returncode == 0


def with_ensurepip(target: Path) -> None:
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise LookupError("this Python has no ensurepip") from None
    run(sys.executable, "-m", "venv", target)


def with_apt(target: Path) -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None or "/usr/bin" not in os.path.realpath(sys.executable):
        raise LookupError("not root, or not Debian's own Python")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", env=environment)
    run("apt-get", "install", "-q", "-y", "--no-install-recommends", "python3-venv", env=environment)
    run(sys.executable, "-m", "venv", target)


def with_index(target: Path) -> None:
    """The newest pip wheel of the configured index, by the simple repository API."""
    base = configured("index-url")
    if base is None:
        raise LookupError("no index is configured (PIP_INDEX_URL, pip.conf)")
    page = f"{base.rstrip('/')}/pip/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = re.findall(r'href="([^"]+?\.whl(?:#[^"]*)?)"', answer.read().decode())
    wheels = [html.unescape(link) for link in links if re.search(r"/?pip-[\d.]+-py3-none-any\.whl", link)]
    if not wheels:
        raise LookupError(f"{page} lists no wheel of pip")
    newest = max(wheels, key=lambda link: [int(n) for n in re.findall(r"pip-([\d.]+)-", link)[0].split(".")])
    with tempfile.TemporaryDirectory() as name:
        url = urllib.parse.urljoin(page, newest)
        wheel = Path(name) / Path(urllib.parse.urlparse(url).path).name
        with urllib.request.urlopen(url, timeout=60) as answer:
            wheel.write_bytes(answer.read())
        from_wheel(target, wheel)


def with_debian_wheel(target: Path) -> None:
    """Debian packs pip's wheel; apt fetches packages without root when its state lies elsewhere."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LookupError("no apt here")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for folder in ("state/lists/partial", "cache/archives/partial", "package"):
            (work / folder).mkdir(parents=True)
        apt = ["apt-get", "-q", "-o", f"Dir::State={work}/state", "-o", f"Dir::Cache={work}/cache"]
        apt += [
            "-o",
            "Dir::State::status=/var/lib/dpkg/status",
            "-o",
            "APT::Sandbox::User=",
            "-o",
            "Debug::NoLocking=1",
        ]
        run(*apt, "update")
        run(*apt, "download", "python3-pip-whl", cwd=work / "package")
        run("dpkg-deb", "-x", next((work / "package").glob("*.deb")), work / "root")
        from_wheel(target, next((work / "root").rglob("pip-*.whl")))


def from_wheel(target: Path, wheel: Path) -> None:
    """pip runs from inside its own wheel, and installs itself."""
    run(sys.executable, "-m", "venv", "--without-pip", target)
    python = target / "bin" / "python"
    run(python, wheel / "pip", "install", "-q", "--no-index", "--no-deps", wheel)


def configured(key: str) -> str | None:
    """A setting of pip as pip would find it: environment first, then its configuration files."""
    value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
    if value:
        return value
    home, config = Path.home(), os.environ.get("XDG_CONFIG_HOME", "")
    files = [
        Path(os.environ.get("PIP_CONFIG_FILE", "/nowhere")),
        Path(config or home / ".config") / "pip" / "pip.conf",
    ]
    files += [home / ".pip" / "pip.conf", Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf")]
    for file in files:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(file)
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("install", "global"):
            if parser.has_option(section, key):
                return parser.get(section, key).strip()
    return None


if __name__ == "__main__":
    main()
