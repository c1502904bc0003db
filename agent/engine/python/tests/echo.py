"""An engine without a model, under the kit: each next token is a sum over what it reads back from KV, so KV that came wrong is heard by clients.

Takes the flags of tangram-engine. tests/walk runs worlds of it, and works out the same sums.
"""

import argparse
import json
import signal
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tangram_client import EngineStats, Maps, SlabFormat
from tangram_engine import Entry, Finish, Kit, KvLayout, NoRoom, Refusal, Request, Step, Submit

BLOCK_TOKENS, BLOCK_BYTES, BATCH, MOST, VOCABULARY = 16, 256, 64, 4096, 1000
TOKEN = struct.Struct("<IxxxxQ")  # token and, so that a page of another request is noticed, its position


@dataclass
class Sequence_:
    id: str
    gateway: str
    tokens: list[int]
    prompt: int
    most: int  # tokens in all
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    running: bool = False

    def state(self) -> bytes:
        return json.dumps([self.tokens, self.prompt, self.most]).encode()


def next_token(values: Iterable[int]) -> int:
    return sum((p + 1) * value for p, value in enumerate(values)) % VOCABULARY


class Echo:
    max_tokens, vocabulary = MOST, VOCABULARY

    def __init__(self, kit: Kit, step_s: float):
        self.kit, self.layers, self.kv, self.step_s = kit, kit.client.model.layers, kit.client.kv.data, step_s
        self.count = len(self.kv) // (self.layers * BLOCK_BYTES)
        self.free = list(range(self.count))
        self.here: dict[str, Sequence_] = {}
        self.adopted: dict[str, Sequence_] = {}
        self.plan: list[tuple[Sequence_, int]] = []  # of the step: who computes how many positions

    # Requests.

    def submit(self, submit: Submit) -> None:
        if submit.request in self.here:
            self.kit.refuse(submit.gateway, submit.request, Refusal.RUNNING, "it is here already")
        elif len(submit.prompt) + submit.max_tokens > MOST or not submit.prompt:
            self.kit.refuse(submit.gateway, submit.request, Refusal.INVALID, "too long, or nothing")
        else:
            self.here[submit.request] = Sequence_(submit.request, submit.gateway, submit.prompt, len(submit.prompt), len(submit.prompt) + submit.max_tokens)

    def cancel(self, request: str) -> bool:
        sequence = self.here.pop(request, None)
        if sequence is not None:
            self.free += sequence.blocks
        return sequence is not None

    def stats(self) -> EngineStats:
        running = sum(s.running for s in self.here.values())
        return EngineStats(kv_pages=self.count, kv_free_pages=len(self.free), running=running, waiting=len(self.here) - running)

    # A step.

    def fits(self, target: Maps, repair: bool) -> None:
        pass

    def announce(self, step: int) -> tuple[int, bool]:
        self.plan, left = [], BATCH
        for s in self.here.values():
            rows = min(left, len(s.tokens) - s.computed)
            need = -(-(s.computed + rows) // BLOCK_TOKENS) - len(s.blocks)
            if rows > 0 and need <= len(self.free):
                s.blocks += [self.free.pop() for _ in range(need)]
                s.running = True
                self.plan.append((s, rows))
                left -= rows
        return BATCH - left, bool(self.here)

    def compute(self, step: Step) -> None:
        mine = sum(rows for _, rows in self.plan)
        told = self.kit.exchange(1, [struct.pack("<I", mine)] * step.world_size)
        if sum(struct.unpack("<I", t)[0] for t in told) != step.rows:
            raise AssertionError(f"ranks have {[bytes(t) for t in told]} rows, the kit says {step.rows}")
        time.sleep(self.step_s)
        self.kit.may_emit()
        for s, rows in self.plan:
            for p in range(s.computed, s.computed + rows):
                for layer in range(self.layers):
                    TOKEN.pack_into(self.kv, self.at(s, layer, p), s.tokens[p] + layer, p)
            s.computed += rows
            if s.computed == len(s.tokens):
                self.emit(s)

    def at(self, s: Sequence_, layer: int, p: int) -> int:
        return (layer * self.count + s.blocks[p // BLOCK_TOKENS]) * BLOCK_BYTES + p % BLOCK_TOKENS * TOKEN.size

    def read(self, s: Sequence_, layer: int) -> list[int]:
        out = []
        for p in range(s.computed):
            value, position = TOKEN.unpack_from(self.kv, self.at(s, layer, p))
            out.append(value - layer if position == p else 0)
        return out

    def emit(self, s: Sequence_) -> None:
        tokens = [next_token(self.read(s, layer)) for layer in range(self.layers)]
        token = tokens[0] if len(set(tokens)) == 1 else (tokens[0] + 1) % VOCABULARY  # wrong, and seen by the client
        s.tokens.append(token)
        last = len(s.tokens) == s.most
        self.kit.emit(s.gateway, s.id, len(s.tokens) - 1, token, Finish.LENGTH if last else Finish.GOES_ON)
        if last:
            self.cancel(s.id)

    # A flip.

    def kv_layout(self) -> KvLayout:
        return KvLayout(0, self.count * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, self.count, len(self.free))

    def manifest(self) -> Iterable[Request]:
        for s in sorted(self.here.values(), key=lambda s: not s.running):
            yield Request(s.id, s.gateway, s.running, s.computed, s.most, s.blocks, s.state())

    def adopt(self, request: Request) -> Sequence[int]:
        if len(request.blocks) > len(self.free):
            raise NoRoom(f"{len(request.blocks)} blocks of {len(self.free)}")
        blocks = [self.free.pop() for _ in request.blocks]
        tokens, prompt, most = json.loads(request.state)
        self.adopted[request.request] = Sequence_(request.request, request.gateway, tokens, prompt, most, request.computed, blocks, request.running)
        return blocks

    def drop(self) -> None:
        for s in self.adopted.values():
            self.free += s.blocks
        self.adopted.clear()

    def gone(self, request: str) -> None:
        self.cancel(request)

    def enter(self, maps: Maps, entry: Entry) -> None:
        self.here |= self.adopted
        self.adopted.clear()
        print(json.dumps({"epoch": maps.epoch, "rank": maps.rank, "entry": entry.name, "requests": len(self.here)}), flush=True)

    def leave(self) -> None:
        self.here.clear()
        self.free = list(range(self.count))
        print(json.dumps({"epoch": 0, "entry": "LEFT"}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    flags = ("agent-socket", "token-file", "mesh-listen", "serve-listen", "advertise", "ready-file", "tls-ca", "tls-cert", "tls-key")
    for flag in flags:
        parser.add_argument(f"--{flag}", required=flag != "advertise", default="")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=2)
    args, _ = parser.parse_known_args()
    kit = Kit.open(**{flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in flags}, device=args.device, block_tokens=BLOCK_TOKENS,
                   slab_formats=SlabFormat.GRANULE_MAJOR | SlabFormat.ROW_MAJOR)
    signal.signal(signal.SIGTERM, lambda *_: kit.stop())
    kit.run(Echo(kit, args.step_ms / 1000))
    print("left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
