"""Everything the processes of a deployment say to each other: frozen structs, MessagePack, nothing else.

Links (see `link`): entry -> agent, agent -> broker, entry -> broker, client -> broker, agent -> replica (local
socket). The left side connects. Each struct names its link and direction. A message of an unknown type or
shape raises `msgspec.ValidationError` in the decoder and is dropped by the link.

Names: a *replica* is (pool, slot, incarnation); `task` is the array index; `agent` is "<pool>/<task>";
`epoch` counts brokers, `attempt` counts the times that one request was sent to a replica.
"""

from __future__ import annotations

from exahpc.wire.messages.base import (
    Message,
)
from exahpc.wire.messages.client import (
    Accepted,
    AgentStatus,
    BatchCancel,
    BatchOpen,
    BatchQuery,
    BatchState,
    BatchStatus,
    DrainAll,
    EntryStatus,
    Refused,
    RolloutCommand,
    RolloutPhase,
    RolloutQuery,
    RolloutStart,
    RolloutStatus,
    StatusQuery,
    StatusReply,
    VersionStatus,
)
from exahpc.wire.messages.control import (
    AgentBeat,
    AgentGone,
    AgentHello,
    AgentRoute,
    DrainAgent,
    EntryBeat,
    EntryHello,
    FleetTable,
    LeaseGrant,
    LeaseProgress,
    LeaseRevoke,
    LeaseWanted,
    Length,
    ReplicaPhase,
    ReplicaState,
    RestartReplica,
    Route,
    Service,
    Share,
    SwitchVersion,
    Welcome,
)
from exahpc.wire.messages.replica import (
    Abort,
    Admit,
    Admits,
    Adopt,
    Likelihood,
    NoRoom,
    Reason,
    ReplicaBeat,
    ReplicaHello,
    Sampling,
    StopReplica,
    Tokens,
)
from exahpc.wire.messages.requests import (
    Answer,
    Answers,
    Busy,
    Cancel,
    Done,
    Failed,
    Frame,
    Frames,
    Load,
    Resume,
    Room,
    Submit,
    Submits,
)
from exahpc.wire.messages.telemetry import (
    AgentRollup,
    Alert,
    Detail,
    EntryFigures,
    EntryRollup,
    Figures,
    FiguresQuery,
    FleetFigures,
    FleetMap,
    MapQuery,
    MapTask,
    Measure,
    Moment,
    Recent,
    ReplicaQuery,
    ReplicaStory,
    Scope,
    Sketch,
)

EntryToAgent = Submit | Submits | Cancel
AgentToEntry = Answer | Answers
ToBroker = (
    AgentHello
    | AgentBeat
    | AgentGone
    | LeaseWanted
    | LeaseProgress
    | EntryHello
    | EntryBeat
    | StatusQuery
    | BatchOpen
    | BatchQuery
    | BatchCancel
    | DrainAll
    | RolloutStart
    | RolloutCommand
    | RolloutQuery
    | AgentRollup
    | EntryRollup
    | FiguresQuery
    | MapQuery
    | ReplicaQuery
)
BrokerToAgent = Welcome | LeaseGrant | LeaseRevoke | RestartReplica | DrainAgent | SwitchVersion
BrokerToEntry = Welcome | FleetTable | FleetFigures | FleetMap | ReplicaStory | Refused
BrokerToClient = (
    StatusReply | BatchState | RolloutStatus | FleetFigures | FleetMap | ReplicaStory | Accepted | Refused
)
AgentToReplica = Adopt | Admit | Admits | Abort | StopReplica
ReplicaToAgent = ReplicaHello | Tokens | ReplicaBeat | NoRoom

__all__ = [
    "Abort",
    "Accepted",
    "Admit",
    "Admits",
    "Adopt",
    "AgentBeat",
    "AgentGone",
    "AgentHello",
    "AgentRollup",
    "AgentRoute",
    "AgentStatus",
    "AgentToEntry",
    "AgentToReplica",
    "Alert",
    "Answer",
    "Answers",
    "BatchCancel",
    "BatchOpen",
    "BatchQuery",
    "BatchState",
    "BatchStatus",
    "BrokerToAgent",
    "BrokerToClient",
    "BrokerToEntry",
    "Busy",
    "Cancel",
    "Detail",
    "Done",
    "DrainAgent",
    "DrainAll",
    "EntryBeat",
    "EntryFigures",
    "EntryHello",
    "EntryRollup",
    "EntryStatus",
    "EntryToAgent",
    "Failed",
    "Figures",
    "FiguresQuery",
    "FleetFigures",
    "FleetMap",
    "FleetTable",
    "Frame",
    "Frames",
    "LeaseGrant",
    "LeaseProgress",
    "LeaseRevoke",
    "LeaseWanted",
    "Length",
    "Likelihood",
    "Load",
    "MapQuery",
    "MapTask",
    "Measure",
    "Message",
    "Moment",
    "NoRoom",
    "Reason",
    "Recent",
    "Refused",
    "ReplicaBeat",
    "ReplicaHello",
    "ReplicaPhase",
    "ReplicaQuery",
    "ReplicaState",
    "ReplicaStory",
    "ReplicaToAgent",
    "RestartReplica",
    "Resume",
    "RolloutCommand",
    "RolloutPhase",
    "RolloutQuery",
    "RolloutStart",
    "RolloutStatus",
    "Room",
    "Route",
    "Sampling",
    "Scope",
    "Service",
    "Share",
    "Sketch",
    "StatusQuery",
    "StatusReply",
    "StopReplica",
    "Submit",
    "Submits",
    "SwitchVersion",
    "ToBroker",
    "Tokens",
    "VersionStatus",
    "Welcome",
]
