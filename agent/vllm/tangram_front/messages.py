"""Messages of proto/tangram/v1/front.proto, made from its descriptor without generated code.

`make proto` writes front.binpb.
"""

from __future__ import annotations

import pathlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SESSION = "/tangram.v1.Front/Session"


def _classes() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(__file__).with_name("front.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)


_CLASSES = _classes()
FrontRequest = _CLASSES["tangram.v1.FrontRequest"]
FrontReply = _CLASSES["tangram.v1.FrontReply"]
Submit = _CLASSES["tangram.v1.Submit"]

FINISH_LENGTH, FINISH_STOP, FINISH_CANCELLED = 1, 2, 3  # tangram.v1.Finish
