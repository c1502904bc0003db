"""The kit for engines (agent/engine) in Python: an engine of a Tangram world is a `Backend` under a `Kit`."""

from .engine import Ahead, Arrived, Backend, Element, Entry, Finish, Kit, KvLayout, KvSet, Logprobs, NoRoom, PeerGone, Refusal, Refused, Request, Step, Submit, prefix_after, prefix_of_salt

__all__ = ["Ahead", "Arrived", "Backend", "Element", "Entry", "Finish", "Kit", "KvLayout", "KvSet", "Logprobs", "NoRoom", "PeerGone", "Refusal", "Refused", "Request", "Step", "Submit",
           "prefix_after", "prefix_of_salt"]
