"""A wheel with compiled modules, where EXAHPC_COMPILE is set; without it this changes nothing.

mypyc compiles the modules named in pyproject.toml ([tool.hatch.build.targets.wheel.hooks.custom]). Their sources
stay in the wheel beside them: tracebacks show lines, and an interpreter that cannot load the compiled ones takes
these. It needs mypy, setuptools and a C compiler, and runs without build isolation: mypyc must see the libraries'
types.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "exahpc"


class Compile(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or not os.environ.get("EXAHPC_COMPILE"):
            return  # an editable installation is for changing the sources
        from mypyc.build import mypycify
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext

        self._work = TemporaryDirectory(prefix="exahpc-build-")
        work, before = Path(self._work.name), Path.cwd()
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
            command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
        made = sorted((work / "lib").rglob("*.so"))
        build_data["force_include"] |= {str(path): str(path.relative_to(work / "lib")) for path in made}
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_work"):
            self._work.cleanup()
