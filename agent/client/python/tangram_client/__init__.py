"""The engine's side of a Tangram world, in Python.

A thin layer over ``libtangram_client.so`` by ctypes. ``tangram/client.h`` describes its functions and their order.
Weights and KV are not copied: a view is the agent's memory.

    with Client.attach(socket, token, mesh_endpoint="10.0.0.1:7200") as client:
        event = client.poll(1000)
"""

from .client import Client, EngineStats, GateVote, library_version
from .errors import (
    AgainError,
    DisconnectedError,
    InvalidError,
    NoRoomError,
    RefusedError,
    TangramError,
)
from .kv import (
    Group,
    Kept,
    Manifest,
    Part,
    Placement,
    Plan,
    RankState,
    Request,
    Rows,
    Strip,
    StripMove,
    kv_plan,
)
from .kv_format import ByteMoves, KvElement, KvFormat, KvMove, PageCopy, kv_moves
from .maps import (
    AttentionGroup,
    Event,
    EventKind,
    Expert,
    LayerMap,
    Maps,
    Model,
    Piece,
    Section,
    SlabFormat,
)
from .views import DType, View

__all__ = [
    "AgainError",
    "AttentionGroup",
    "ByteMoves",
    "Client",
    "DType",
    "DisconnectedError",
    "EngineStats",
    "Event",
    "EventKind",
    "Expert",
    "GateVote",
    "Group",
    "InvalidError",
    "Kept",
    "KvElement",
    "KvFormat",
    "KvMove",
    "LayerMap",
    "Manifest",
    "Maps",
    "Model",
    "NoRoomError",
    "PageCopy",
    "Part",
    "Piece",
    "Placement",
    "Plan",
    "RankState",
    "RefusedError",
    "Request",
    "Rows",
    "Section",
    "SlabFormat",
    "Strip",
    "StripMove",
    "TangramError",
    "View",
    "kv_moves",
    "kv_plan",
    "library_version",
]

__version__ = "1.0.0"
