"""The kit for engines (agent/engine) in Python: an engine of a Tangram world is a `Backend` under a `Kit`."""

from .engine import Arrived, Backend, Element, Entry, Finish, Kit, KvLayout, NoRoom, PeerGone, Refusal, Refused, Request, Step, Submit

__all__ = ["Arrived", "Backend", "Element", "Entry", "Finish", "Kit", "KvLayout", "NoRoom", "PeerGone", "Refusal", "Refused", "Request", "Step", "Submit"]
