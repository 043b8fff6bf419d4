"""A wheel with compiled modules, where they can be compiled.

mypyc compiles the modules named in pyproject.toml ([tool.hatch.build.targets.wheel.hooks.custom]). Their sources
stay in the wheel beside them: tracebacks show lines, and an interpreter that cannot load the compiled ones takes
these. It needs mypy, setuptools, a C compiler and Python's headers, where it is built.

EXAHPC_COMPILE=0 leaves it out, EXAHPC_COMPILE=1 fails where it cannot be done. Run by itself it prints what is
missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "exahpc"


class Compile(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("EXAHPC_COMPILE")
        if version != "standard" or wish == "0":
            return  # an editable installation is for changing the sources
        try:
            if (lacking := missing()) is not None:
                raise RuntimeError(lacking)
            made = self._compile()
        except (Exception, SystemExit) as error:  # there are many versions of mypy and of compilers
            if wish == "1":
                raise
            self.app.display_warning(f"nothing is compiled, {NAME} will run slower: {error}")
            return
        build_data["force_include"] |= {str(path): str(path.relative_to(self._built)) for path in made}
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def _compile(self) -> list[Path]:
        """The compiled modules, in `_built`."""
        from mypyc.build import mypycify
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext

        self._work = TemporaryDirectory(prefix="exahpc-build-")
        work, before = Path(self._work.name), Path.cwd()
        self._built = work / "lib"
        os.chdir(self.root)
        try:
            extensions = mypycify(
                ["--config-file=packaging/mypyc.ini", *self.config["modules"]],
                target_dir=str(work / "c"),
                group_name=NAME,
                debug_level="0",
                opt_level="2",
            )
            command = build_ext(Distribution({"name": NAME, "ext_modules": extensions}))
            command.build_lib, command.build_temp = str(self._built), str(work / "objects")
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
        return sorted(self._built.rglob("*.so"))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_work"):
            self._work.cleanup()


def missing() -> str | None:
    """What this machine lacks to compile, or None."""
    for module in ("mypy", "mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(str(compiler).split()[0]) is None:
        return f"there is no C compiler ({compiler})"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return None if headers.exists() else f"there is no {headers}"


if __name__ == "__main__":
    print(missing() or "")
