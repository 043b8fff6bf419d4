"""What `up` writes into the deployment's folder reads back as the same value."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exahpc.deployment.parse import load
from exahpc.deployment.render import toml
from exahpc.deployment.spec import Deployment, Head, Launcher, Model, Pool, SlurmResources

words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1, max_size=12).filter(
    lambda text: text.strip() and text.isprintable()
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,10}", fullmatch=True).filter(lambda name: name != "head")
resources = st.builds(
    SlurmResources,
    partition=st.none() | words,
    exclusive=st.none() | st.booleans(),
    cpus_per_rank=st.none() | st.integers(1, 64),
    modules=st.none() | st.lists(words, min_size=1, max_size=3).map(tuple),
)
pools = st.builds(
    Pool, name=names, replicas=st.integers(1, 99), requeue=st.booleans(), tensor_parallel=st.integers(1, 4),
    slurm=resources,
)  # fmt: skip


@given(
    name=names,
    path=words,
    pools=st.lists(pools, min_size=1, max_size=3, unique_by=lambda pool: pool.name),
    slurm=resources,
    local=st.booleans(),
    bind=st.sampled_from(["127.0.0.1", "0.0.0.0", "10.0.0.1"]),
    python=st.none() | words,
)
def test_rendered_text_parses_to_the_same_deployment(
    name: str, path: str, pools: list[Pool], slurm: SlurmResources, local: bool, bind: str, python: str | None
) -> None:
    value = Deployment(
        name=name,
        model=Model(path=path),
        pool=tuple(pools),
        slurm=slurm,
        head=Head(bind=bind, placement="local" if local else "job"),
        launcher=Launcher(kind="local" if local else "slurm", python=python),
    )
    assert load(toml(value)) == value


def test_defaults_that_depend_on_the_launcher_are_always_written() -> None:
    local = load('name="d"\nmodel.path="/m"\n[[pool]]\nname="a"\n[launcher]\nkind="local"\n[head]\nbind="0.0.0.0"')
    assert load(toml(local)).head.bind == "0.0.0.0"


def test_escapes_survive() -> None:
    value = load('name="d"\nmodel.path="/m"\n[[pool]]\nname="a"')
    odd = msgspec.structs.replace(value, model=Model(path='/a "quoted"\\path\t\x7fé\U0001f600'))
    assert '"/a \\"quoted\\"' in toml(odd)
    import tomllib

    assert tomllib.loads(toml(odd))["model"]["path"] == odd.model.path
