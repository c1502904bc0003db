"""An engine without a model: takes the flags of tangram-engine, steps, flips, and compares pieces with the checkpoint.

Prints a JSON line for every epoch that it enters; ends with code 1 at the first difference. tests/walk runs worlds of it.
"""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import numpy
from checkpoint import Checkpoint
from mesh import PULLED, WORD, Mesh

from tangram_client import (
    AgainError, Client, EngineStats, Event, EventKind, GateVote, KvElement, KvFormat, Maps, Model, PageCopy, Piece, SlabFormat, View, kv_moves,
)

KV_BYTES = 4096  # of a rank's pattern
STEP_S = 0.005


def pattern(member: str) -> bytes:
    return hashlib.sha256(member.encode()).digest() * (KV_BYTES // 32)


def heads(maps: Maps) -> list[object]:
    """By layer and group: the members that share a request's heads, and their bounds."""
    return [[(tuple(maps.members[r] for r in g.ranks), g.query_head_bounds) for g in layer.attention] for layer in maps.layers]


class Engine:
    def __init__(self, client: Client, mesh: Mesh, checkpoint: Checkpoint):
        self.client, self.mesh, self.checkpoint = client, mesh, checkpoint
        self.model: Model = client.model
        self.prepared: Event | None = None
        self.maps: Maps | None = None
        self.step = self.pulled = 0
        self.stopping = False

    def run(self) -> None:
        if self.client.maps is not None:
            self.enter(self.client.maps)  # it attached again, into an active layout
        while not self.stopping:
            event = self.client.poll(0)
            if event is not None:
                self.take(event)
            elif self.maps is None or self.maps.rank is None:
                self.outside()
            else:
                self.take_step(self.maps, self.maps.rank)

    def take(self, event: Event) -> None:
        if event.kind == EventKind.PREPARE:
            self.prepared = event
            self.client.prepared(event.attempt)  # datagrams need no connection
        elif event.kind == EventKind.ABORT:
            self.prepared = None
        else:
            assert event.target is not None
            self.enter(event.target)

    def outside(self) -> None:
        self.mesh.listen(STEP_S)
        if self.prepared is None or not self.prepared.joining or not self.mesh.begun(self.prepared.target_epoch):
            return
        try:
            self.enter(self.client.gate_join(1000))
        except AgainError:
            pass  # no permit yet

    def take_step(self, maps: Maps, rank: int) -> None:
        word = self.client.gate_vote()
        words = self.mesh.gather(maps.epoch, self.step, WORD, rank, maps.mesh, word)
        if self.client.gate_decide([GateVote(*w) for w in words]):
            self.flip(maps, rank)
            return
        self.client.count(0, self.step % self.model.experts, 1)
        self.client.report(EngineStats(kv_pages=7, kv_free_pages=7, running=0, waiting=0))
        time.sleep(STEP_S)
        self.client.step_done()
        self.step += 1

    def flip(self, maps: Maps, rank: int) -> None:
        """Fetches the others' KV, waits until all have theirs, and commits."""
        assert self.prepared is not None and self.prepared.target is not None
        if heads(maps) != heads(self.prepared.target):  # otherwise the agents let no rank read KV
            others = [r for r in range(maps.world_size) if r != rank]
            pool = KvFormat(blocks=1 + maps.world_size, block_tokens=16, element=KvElement.F32, key_width=32, value_width=32,
                            token_stride=128, value_offset=KV_BYTES // 2, block_stride=KV_BYTES)
            copies = [PageCopy(r, 0, 1, 1 + r, 1, 1, pool.block_tokens) for r in others]
            self.pulled += self.client.kv_pull(kv_moves([pool] * maps.world_size, pool, copies))
            kv = self.client.kv.data
            for r in others:
                if kv[(1 + r) * KV_BYTES : (2 + r) * KV_BYTES] != pattern(maps.members[r]):
                    raise AssertionError(f"the KV of rank {r} is not what it wrote")
        self.mesh.gather(maps.epoch, self.step, PULLED, rank, maps.mesh, (0, 0))
        held = self.hashes(maps)
        done = os.eventfd(0)  # simulates a device that has not finished the last step
        after = self.client.gate_commit(done)
        if self.hashes(maps) != held:  # before done_fd is readable, no memory is freed
            raise AssertionError("pieces of the layout before changed at the flip")
        os.eventfd_write(done, 1)
        os.close(done)
        self.enter(after)

    def enter(self, maps: Maps) -> None:
        self.maps, self.prepared, self.step = maps, None, 0
        pieces = dense = 0
        if maps.rank is not None:
            numpy.from_dlpack(self.client.kv)[:KV_BYTES] = numpy.frombuffer(pattern(self.model.member), numpy.uint8)
            pieces, dense = self.check_pieces(maps), self.check_dense()
        print(json.dumps({"epoch": maps.epoch, "rank": maps.rank, "world": maps.world_size, "pieces": pieces, "dense": dense,
                          "pulled": self.pulled}), flush=True)

    def mine(self, maps: Maps) -> list[tuple[int, int, Piece]]:
        return [(layer.layer, e, piece) for layer in maps.layers for e, expert in enumerate(layer.experts)
                for alternative in expert.alternatives for piece in alternative if piece.rank == maps.rank]

    @property
    def row_major(self) -> bool:
        return self.model.slab_format == SlabFormat.ROW_MAJOR

    def views(self, piece: Piece) -> tuple[View, ...]:
        return self.client.piece_sections(piece) if self.row_major else (self.client.piece(piece),)

    def hashes(self, maps: Maps) -> list[str]:
        return [hashlib.sha256(view.data).hexdigest() for _, _, piece in self.mine(maps) for view in self.views(piece)]

    def check_pieces(self, maps: Maps) -> int:
        """Checks every granule of every piece of mine, and that each granule of an expert is on some rank."""
        for layer in maps.layers:
            for expert in layer.experts:
                for alternative in expert.alternatives:
                    granules = [g for p in alternative for g in range(p.granule_start, p.granule_start + p.granule_count)]
                    if granules != list(range(self.model.granules)):
                        raise AssertionError(f"layer {layer.layer}: granules {granules}")
        mine = self.mine(maps)
        for layer, expert, piece in mine:
            where = (layer, expert, piece.granule_start, piece.granule_count, self.model.granule_rows)
            want = self.checkpoint.rows(*where) if self.row_major else [self.checkpoint.granules(*where)]
            views = self.views(piece)
            got = [numpy.frombuffer(view.data, numpy.uint16).reshape(view.shape) for view in views]
            if not all(map(numpy.array_equal, got, want)) or len(got) != len(want):
                raise AssertionError(f"layer {layer}, expert {expert}: {piece} is not the checkpoint's")
            if not all(view.data.readonly for view in views):
                raise AssertionError("weights can be written")
        return len(mine)

    def check_dense(self) -> int:
        if list(self.client.dense_names) != self.checkpoint.dense_names():
            raise AssertionError(f"dense tensors: {self.client.dense_names}")
        for name in self.client.dense_names:
            view, (data, shape) = self.client.dense(name), self.checkpoint.raw(name)
            if view.shape != shape or view.data != data:
                raise AssertionError(f"{name} is not the checkpoint's")
            if not view.data.readonly:
                raise AssertionError("weights can be written")
        return len(self.client.dense_names)


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("agent-socket", "token-file", "mesh-listen", "ready-file", "checkpoint"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--attention-data-only", action="store_true")
    args, _ = parser.parse_known_args()  # the others are for engines that serve
    host = args.mesh_listen.rpartition(":")[0]
    mesh, checkpoint = Mesh(host), Checkpoint(args.checkpoint)
    frontend = f"{host}:9"  # unused: this engine serves no requests
    with Client.attach(args.agent_socket, pathlib.Path(args.token_file).read_text().strip(), device=args.device,
                       mesh_endpoint=mesh.endpoint, frontend=frontend, kv_block_tokens=16, mixed_layouts=True, attention_data_only=args.attention_data_only,
                       slab_formats=SlabFormat.GRANULE_MAJOR | SlabFormat.ROW_MAJOR) as client:
        engine = Engine(client, mesh, checkpoint)
        signal.signal(signal.SIGTERM, lambda *_: setattr(engine, "stopping", True))
        part = pathlib.Path(args.ready_file + ".part")
        part.write_text(json.dumps({"frontend": frontend, "mesh": mesh.endpoint}))
        part.replace(args.ready_file)
        engine.run()
    print("left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
