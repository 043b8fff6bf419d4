"""`exahpc bench`: load on an endpoint, and how it bears it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from exahpc.cli.bench_view import show
from exahpc.cli.common import json_text, notes, opened
from exahpc.cli.load_options import lengths_option, load_of, load_options, slo_option
from exahpc.errors import DeploymentError, ExahpcError
from exahpc.lab.bench import source
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.run import measure
from exahpc.lab.bench.target import target_of
from exahpc.lab.bench.wish import Slo, Target, Wish


@click.command()
@click.argument("name", required=False)
@click.option("--url", help="Any OpenAI endpoint instead of NAME, for example http://127.0.0.1:8000/v1")
@click.option(
    "--key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Its API key, in a file."
)
@click.option("--model", help="Its model  [default: the one that it serves]")
@click.option(
    "--ca", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Certificate to trust, PEM."
)
@load_options()
@lengths_option(
    "--prompt", "128", "Tokens of each prompt: N, uniform:A-B, lognormal:MEDIAN,SIGMA, exponential:MEAN."
)
@lengths_option("--new", "64", "Most tokens of each answer, in the same forms.")
@click.option(
    "--file",
    "prompts",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Prompts in turn: one a line, or JSON lines with prompt or messages.",
)
@click.option("--chat", is_flag=True, help="Ask /chat/completions, not /completions.")
@click.option("--stream/--no-stream", default=True, help="Streamed answers (default), or whole ones.")
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=None,
    help="Answers of exactly the wanted length, where the server can  [default: yes for NAME, no for --url]",
)
@slo_option()
@click.option("--processes", type=click.IntRange(1, 256), help="Of the client  [default: as the load needs]")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything random.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON here.")
def bench(
    name: str | None,
    url: str | None,
    key_file: Path | None,
    model: str | None,
    ca: Path | None,
    rate: float | None,
    concurrency: int | None,
    arrivals: Literal["poisson", "fixed"],
    seconds: float,
    ramp: float,
    drain: float,
    prompt: Lengths,
    new: Lengths,
    prompts: Path | None,
    chat: bool,
    stream: bool,
    ignore_eos: bool | None,
    slo: Slo,
    processes: int | None,
    seed: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Load NAME, or any OpenAI endpoint, and tell how it bears it.

    With --concurrency so many clients ask, each again when it has its answer (closed loop); with --rate requests
    come when they come, whatever becomes of earlier ones (open loop). What happens during the ramp-up does not
    count; the time that the last answers take is shown beside. The client measures itself, and warns when the
    figures may be its own.
    """
    load = load_of(rate, concurrency, arrivals)
    target, key = _target(name, url, key_file, model, ca, ignore_eos)
    if prompts is not None:
        source.check_form(source.prompts(prompts), chat, str(prompts))
    wish = Wish(
        target, load, prompt, new, ramp=ramp, seconds=seconds, drain=drain,
        file=str(prompts.absolute()) if prompts else "", chat=chat, stream=stream, seed=seed, slo=slo,
    )  # fmt: skip
    found = measure(wish, key, processes or 0, lambda line: notes.print(line, markup=False))
    if output is not None:
        output.write_text(json_text(found) + "\n")
    if as_json:
        click.echo(json_text(found))
    else:
        show(found)
    for doubt in found.client.doubts:
        notes.print(
            f"[yellow]the client may be the bottleneck:[/] {doubt}; try more --processes or less load",
            soft_wrap=True,
        )


def _target(
    name: str | None, url: str | None, key_file: Path | None, model: str | None, ca: Path | None, eos: bool | None
) -> tuple[Target, str]:
    """An endpoint and its key. Raises UsageError, LinkError, DeploymentError."""
    if (name is None) == (url is None):
        raise click.UsageError("what is loaded? Give NAME of a deployment, or --url")
    if url is not None:
        key = key_file.read_text().strip() if key_file else ""
        url = url.rstrip("/")
        trust = str(ca.absolute()) if ca else ""
        return Target(url, model or _model_of(url, key, trust), 0, trust, bool(eos)), key
    if key_file or ca:
        raise click.UsageError("--key-file and --ca belong to --url: the deployment's own are known")
    assert name is not None
    folder, deployment = opened(name)
    return target_of(folder, deployment, model, ignore_eos=eos is not False)


class _Listed(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Listed]


def _model_of(url: str, key: str, ca: str) -> str:
    """The first that the endpoint lists. Raises ExahpcError when it lists none."""
    import ssl

    import httpx

    verify: Any = ssl.create_default_context(cafile=ca) if ca else True
    try:
        answer = httpx.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"}, verify=verify, timeout=30)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=_Models).data[0].id
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, IndexError) as error:
        raise ExahpcError(f"{url}/models tells no model ({error}): correct --url, or give --model") from None
    except OSError as error:
        raise DeploymentError(f"--ca {ca}: {error}") from None
