"""The deployment file as frozen values. Every field here is a key of the TOML file, documented by its docstring.

Pure: parsing lives in `parse`, capacity arithmetic in `grid`.
"""

from __future__ import annotations

from typing import Literal

from exahpc.deployment.accelerators import Name as AcceleratorName
from exahpc.deployment.frozen import Frozen
from exahpc.deployment.policy import Alerts, Budget, Health, Length, Rollout, Routing, Scaling, Walltime

Dtype = Literal["bfloat16", "float16", "float32"]
Placement = Literal["job", "first-task", "local"]
LauncherKind = Literal["slurm", "local"]
Commands = Literal["head", "watch"]
Tls = Literal["auto", "on", "off"]
LinkVia = Literal["device", "host"]
Quantization = Literal["none", "int8"]


class Model(Frozen, frozen=True):
    """`[model]`: what is served."""

    path: str
    """Folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer) on a shared file system."""
    name: str | None = None
    """Name that clients ask for; default: the folder's name."""
    dtype: Dtype = "bfloat16"
    """Number format of weights, activations and KV cache. Weights of another format are converted once a node."""
    quantization: Quantization = "none"
    """"int8": the matrices of the layers in 8 bits, one scale a row: half the memory of bfloat16."""
    stage: str | None = None
    """Node-local directory, for instance "/dev/shm" or "$TMPDIR": each node copies the weights there once, and its
    replicas map the copy. It is removed with the last that uses it. Default: weights are mapped where they lie,
    and only what must be converted goes to "/tmp"."""
    context: int = 2048
    """Most tokens of one sequence, prompt and answer together."""
    fold_system: bool = False
    """Fold a system message into the first user message, for templates without a system role."""


class SlurmResources(Frozen, frozen=True):
    """`[slurm]`, `[head.slurm]`, `[pool.slurm]`: what sbatch is asked for. Unset keys add no flag."""

    partition: str | None = None
    """Partition (queue) of the jobs."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    time: str | None = None
    """Walltime as Slurm writes it: minutes, HH:MM:SS or D-HH:MM:SS."""
    gres: str | None = None
    """Generic resources per node, for instance "gpu:4"; exclusive with gpus_per_node."""
    gpus_per_node: str | None = None
    """Accelerators per node, for instance "4" or "a100:4"; exclusive with gres."""
    constraint: str | None = None
    """Features that nodes must have."""
    switches: str | None = None
    """Most leaf switches a task may span, with an optional wait: "1" or "1@30"."""
    exclusive: bool | None = None
    """Take whole nodes."""
    reservation: str | None = None
    """Reservation to use."""
    cpus_per_rank: int | None = None
    """CPUs of one rank; default threads_per_rank."""
    memory: str | None = None
    """Memory per node as Slurm writes it, for instance "64G"."""
    mpi: str | None = None
    """`srun --mpi=` type: "pmix", "pmi2", ...; default pmix."""
    modules: tuple[str, ...] | None = None
    """Environment modules that the job script loads."""
    extra: tuple[str, ...] | None = None
    """Further sbatch flags, as they are."""


class StageLinks(Frozen, frozen=True):
    """`[pool.link]`: how hidden states go from one pipeline stage to the next. Link 0 joins stages 0 and 1."""

    int8: bool = False
    """Send hidden states in 8 bits: a quarter of float32's bytes, half of bfloat16's, at some loss of quality.
    `make bench-stage-links` measures both."""
    group: int = 64
    """Neighbouring numbers that share one scale in 8 bits: fewer lose less and send more."""
    exact: tuple[int, ...] = ()
    """Links that stay exact when `int8` is on, for instance [0]."""
    via: LinkVia = "device"
    """With accelerators: straight from device to device by their collective library, or through host memory by
    MPI. Without effect on CPUs."""


class Pool(Frozen, frozen=True):
    """`[[pool]]`: one job array of identical tasks."""

    name: str
    """Name of the pool: letters, digits, '-' and '_'."""
    replicas: int = 1
    """Replicas of this pool that are wanted; with `scaling.least`, the most."""
    replicas_per_task: int = 1
    """Replicas that share one node; must be 1 when a replica spans several nodes."""
    nodes_per_replica: int = 1
    """Nodes that one replica spans; its ranks are spread evenly, tensor-parallel groups inside a node."""
    tensor_parallel: int = 1
    """Ranks that share each layer; at most the model's key/value heads."""
    pipeline_parallel: int = 1
    """Stages, each with a run of layers; a multiple of nodes_per_replica."""
    max_sequences: int = 16
    """Sequences that one replica runs at once."""
    kv_tokens: int | None = None
    """Tokens that one replica's KV cache holds; default max_sequences x context / 2, at least one context."""
    threads_per_rank: int = 1
    """CPU threads of one rank."""
    devices_per_rank: int = 1
    """Accelerators of one rank when the site has some (gres or gpus_per_node given)."""
    accelerator: AcceleratorName | None = None
    """What one rank runs on: `exahpc up` then compares its memory with what a rank needs (`--strict`: refuses)."""
    requeue: bool = True
    """Let Slurm requeue a lost task. Off: the broker resubmits into the slot."""
    length: Length = "any"
    """Requests that this pool is for: "short", "long" (see `routing.long_tokens`) or "any"."""
    link: StageLinks = StageLinks()
    """How the stages of a pipeline hand over hidden states."""
    scaling: Scaling = Scaling()
    """How many replicas run."""
    slurm: SlurmResources = SlurmResources()
    """Resources of this pool, where they differ from [slurm]."""

    @property
    def ranks_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def tasks(self) -> int:
        """Array tasks of the pool; with scaling, the most."""
        return -(-self.replicas // self.replicas_per_task)

    @property
    def least_tasks(self) -> int:
        """Tasks that are always wanted: all of them without scaling."""
        least = self.scaling.least
        return self.tasks if least is None else -(-least // self.replicas_per_task)

    @property
    def first_tasks(self) -> int:
        """Tasks that `up` starts: one at least, which shows that the deployment works."""
        return max(1, self.least_tasks)

    def slots_of_task(self, task: int) -> range:
        """Slots (replica numbers in the pool) that array task `task` holds."""
        first = task * self.replicas_per_task
        return range(first, min(first + self.replicas_per_task, self.replicas))


class Head(Frozen, frozen=True):
    """`[head]`: broker and entries."""

    placement: Placement = "job"
    """Where the head runs: its own job, the first task of the first pool, or a process of this machine."""
    entries: int = 2
    """HTTP gateway processes; all listen on one port."""
    entries_on_nodes: int = 0
    """Further gateway processes beside each task's agent, on a free port of its node: they prefer the replicas of
    that node. `exahpc url --all` lists them."""
    bind: str = "0.0.0.0"
    """Address that entries listen on; default with the local launcher: 127.0.0.1."""
    port: int = 0
    """TCP port of the endpoint; 0 takes a free one and publishes it."""
    tls: Tls = "auto"
    """"auto": TLS unless bound to loopback."""
    slurm: SlurmResources = SlurmResources()
    """Resources of the head's job, where they differ from [slurm]."""
    batches: int = 4
    """Submitted batches that run at once; others wait, those of the owner with the fewest running first."""
    interface: str | None = None
    """Network interface whose address broker and entries publish, where the head's machine (a login node) names it
    otherwise than the nodes; default: `launcher.interface`."""


class Limits(Frozen, frozen=True):
    """`[limits]`: what one client may ask for."""

    max_body_bytes: int = 8 * 2**20
    """Largest body of one request; beyond that 413."""
    max_tokens_default: int = 256
    """max_tokens of a request that names none (chat: the rest of the context when smaller)."""
    max_waiting: int = 4096
    """Requests that one entry holds back when all replicas are full; beyond that 429."""
    max_waiting_per_key: int | None = None
    """Of these, how many may have come with one API key; default: all of them. A full line gives way to keys that
    have less in it in any case."""
    queue_seconds: float = 60.0
    """Longest wait for a free replica before 503."""
    start_seconds: float = 540.0
    """Longest wait while no replica is up at all, and of a request that must run alone (see
    `docs/explanation/admission.md`); less than the ten minutes after which OpenAI's clients give up themselves."""
    stream_buffer_bytes: int = 2**20
    """Unsent bytes kept for one slow reader before its request is cancelled."""
    attempts: int = 5
    """Times that one request may be sent to a replica."""
    requests: int = 16
    """Choices (`n`) of one request at most."""
    upload_bytes: int = 2**30
    """Largest file of one upload; beyond that 413."""
    files: int = 1000
    """Files that one owner may have (uploads and what batches made of them); beyond that uploads are refused."""
    files_bytes: int = 64 * 2**30
    """Bytes of all these files together."""
    batches: int = 100
    """Batches of one owner that have not ended, ordered over HTTP; beyond that 429."""


class Recovery(Frozen, frozen=True):
    """`[recovery]`: what happens to a replica that died."""

    restarts: int = 3
    """Step restarts within `window_seconds` before the task is given back to Slurm."""
    window_seconds: float = 600.0
    """Time in which restarts are counted."""
    backoff_seconds: float = 0.5
    """Wait before the first restart; doubles with each."""
    ready_seconds: float = 900.0
    """Longest time from launch to the first canary answer."""
    stall_seconds: float = 30.0
    """A replica with work that yields no token for so long is killed and restarted."""
    beat_seconds: float = 2.0
    """An agent's beat to the broker; four missed beats mean lost."""


class Launcher(Frozen, frozen=True):
    """`[launcher]`: how processes are started."""

    kind: LauncherKind = "slurm"
    """Job arrays of a cluster, or processes of this machine."""
    mpirun: str = "mpirun"
    """Local launcher: the MPI starter."""
    mpirun_flags: tuple[str, ...] = ()
    """Local launcher: further flags of the MPI starter."""
    interface: str | None = None
    """Network interface whose address processes publish, for instance "hsn0"; default: the host name's address
    (local launcher: loopback)."""
    python: str | None = None
    """Interpreter on the nodes; default: the one that runs `exahpc up`."""
    environment: str | None = None
    """A file of `exahpc pack`: each node unpacks it once, and runs Python from there instead."""
    environment_in: str = "/tmp"
    """Directory of the node for it; variables such as $TMPDIR are filled in on the node."""
    commands: Commands = "head"
    """Who runs Slurm's commands for the broker: "head", the broker itself; "watch", for sites whose nodes may not
    run them: `exahpc watch` on a login node."""


class Deployment(Frozen, frozen=True):
    """The whole deployment file."""

    name: str
    """Name of the deployment: letters, digits, '-' and '_'."""
    model: Model
    """What is served."""
    pool: tuple[Pool, ...]
    """At least one pool of replicas."""
    head: Head = Head()
    """Broker and HTTP entries."""
    slurm: SlurmResources = SlurmResources()
    """What all jobs ask Slurm for."""
    limits: Limits = Limits()
    """What one client may ask for."""
    recovery: Recovery = Recovery()
    """What happens to a replica that died."""
    routing: Routing = Routing()
    """Which replica takes a request."""
    health: Health = Health()
    """When a replica that lives is too ill for traffic."""
    walltime: Walltime = Walltime()
    """What happens before Slurm ends a task."""
    rollout: Rollout = Rollout()
    """How a new version of the deployment takes over."""
    budget: Budget = Budget()
    """What the deployment may use up."""
    alerts: Alerts = Alerts()
    """When somebody is told that something is wrong."""
    launcher: Launcher = Launcher()
    """How processes are started."""

    @property
    def served_name(self) -> str:
        return self.model.name or self.model.path.rstrip("/").rsplit("/", 1)[-1]

    def pool_named(self, name: str) -> Pool:
        return next(p for p in self.pool if p.name == name)

    @property
    def wanted_replicas(self) -> int:
        """With scaling, the most."""
        return sum(p.replicas for p in self.pool)

    @property
    def first_replicas(self) -> int:
        """Replicas of the tasks that `up` starts."""
        return sum(min(p.replicas, p.first_tasks * p.replicas_per_task) for p in self.pool)
