"""An engine without a model, under the kit: each next token is a sum over its KV, so clients detect wrong KV.

Takes the flags of tangram-engine. tests/walk runs worlds of it, and computes the same sums.
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
from tangram_engine import Entry, Finish, Kit, KvLayout, KvSet, NoRoom, Refusal, Request, Step, Submit, prefix_after, prefix_of_salt

MOST, VOCABULARY = 4096, 1000
TOKEN = struct.Struct("<IxxxxQ")  # token and position; the position reveals a page of another request
DRAFT = struct.Struct("<HI")  # the same, for the layers of drafts: another shape


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
    salt: str = ""
    hashes: list[int] = field(default_factory=list)  # of its full blocks

    def state(self) -> bytes:
        return json.dumps([self.tokens, self.prompt, self.most, self.salt]).encode()


def next_token(values: Iterable[int]) -> int:
    return sum((p + 1) * value for p, value in enumerate(values)) % VOCABULARY


class Echo:
    max_tokens, vocabulary, can = MOST, VOCABULARY, ()

    def __init__(self, kit: Kit, step_s: float, block_tokens: int, batch: int, drafts: int):
        self.block_tokens, self.block_bytes, self.draft_bytes = block_tokens, block_tokens * TOKEN.size, block_tokens * DRAFT.size
        self.kit, self.layers, self.kv, self.step_s, self.batch = kit, kit.client.model.layers, kit.client.kv.data, step_s, batch
        self.drafts = drafts  # layers of a second set of KV, after that of the model's
        self.count = len(self.kv) // (self.layers * self.block_bytes + drafts * self.draft_bytes)
        self.free = list(range(self.count))
        self.here: dict[str, Sequence_] = {}
        self.adopted: dict[str, Sequence_] = {}
        self.reserved: dict[str, list[int]] = {}  # blocks of requests that may come
        # By hash: the number of requests with such a block. No other rank uses it, but it is reported.
        self.cached: dict[int, int] = {}
        self.plan: list[tuple[Sequence_, int]] = []  # the step's requests, and the number of positions of each

    # Requests.

    def submit(self, submit: Submit) -> None:
        if submit.request in self.here:
            self.kit.refuse(submit.gateway, submit.request, Refusal.RUNNING, "it is here already")
        elif len(submit.prompt) + submit.max_tokens > MOST or not submit.prompt:
            self.kit.refuse(submit.gateway, submit.request, Refusal.INVALID, "too long, or nothing")
        else:
            self.here[submit.request] = Sequence_(submit.request, submit.gateway, submit.prompt, len(submit.prompt), len(submit.prompt) + submit.max_tokens,
                                                      salt=submit.cache_salt)

    def cancel(self, request: str) -> bool:
        sequence = self.here.pop(request, None)
        if sequence is not None:
            self.free += sequence.blocks
            self.forget(sequence)
        return sequence is not None

    # Reports to gateways.

    def tell(self, s: Sequence_) -> None:
        while (end := (len(s.hashes) + 1) * self.block_tokens) <= s.computed:
            hash_ = prefix_after(s.hashes[-1] if s.hashes else prefix_of_salt(s.salt), s.tokens[end - self.block_tokens:end])
            s.hashes.append(hash_)
            self.cached[hash_] = self.cached.get(hash_, 0) + 1
            if self.cached[hash_] == 1:
                self.kit.cached([hash_])

    def forget(self, s: Sequence_) -> None:
        for hash_ in s.hashes:
            self.cached[hash_] -= 1
            if self.cached[hash_] == 0:
                del self.cached[hash_]
                self.kit.cached([hash_], here=False)

    def stats(self) -> EngineStats:
        running = sum(s.running for s in self.here.values())
        return EngineStats(kv_pages=self.count, kv_free_pages=len(self.free), running=running, waiting=len(self.here) - running)

    # A step.

    def fits(self, target: Maps, repair: bool) -> None:
        pass

    def announce(self, step: int) -> tuple[int, bool]:
        self.plan, left = [], self.batch
        for s in self.here.values():
            rows = min(left, len(s.tokens) - s.computed)
            need = -(-(s.computed + rows) // self.block_tokens) - len(s.blocks)
            if rows > 0 and need <= len(self.free):
                s.blocks += [self.free.pop() for _ in range(need)]
                s.running = True
                self.plan.append((s, rows))
                left -= rows
        return self.batch - left, bool(self.here)

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
                for layer in range(self.drafts):
                    DRAFT.pack_into(self.kv, self.draft_at(s, layer, p), s.tokens[p] + layer, p)
            s.computed += rows
            self.tell(s)
            if s.computed == len(s.tokens):
                self.emit(s)

    def at(self, s: Sequence_, layer: int, p: int) -> int:
        return (layer * self.count + s.blocks[p // self.block_tokens]) * self.block_bytes + p % self.block_tokens * TOKEN.size

    def draft_at(self, s: Sequence_, layer: int, p: int) -> int:
        behind = self.layers * self.count * self.block_bytes
        return behind + (s.blocks[p // self.block_tokens] * self.drafts + layer) * self.draft_bytes + p % self.block_tokens * DRAFT.size

    def read_drafts(self, s: Sequence_, layer: int) -> list[int]:
        entries = [DRAFT.unpack_from(self.kv, self.draft_at(s, layer, p)) for p in range(s.computed)]
        return [value - layer if position == p else 0 for p, (value, position) in enumerate(entries)]

    def read(self, s: Sequence_, layer: int) -> list[int]:
        out = []
        for p in range(s.computed):
            value, position = TOKEN.unpack_from(self.kv, self.at(s, layer, p))
            out.append(value - layer if position == p else 0)
        return out

    def emit(self, s: Sequence_) -> None:
        tokens = [next_token(self.read(s, layer)) for layer in range(self.layers)]
        tokens += [next_token(self.read_drafts(s, layer)) for layer in range(self.drafts)]
        token = tokens[0] if len(set(tokens)) == 1 else (tokens[0] + 1) % VOCABULARY  # wrong, and the client detects it
        s.tokens.append(token)
        last = len(s.tokens) == s.most
        self.kit.emit(s.gateway, s.id, len(s.tokens) - 1, token, Finish.LENGTH if last else Finish.GOES_ON)
        if last:
            self.cancel(s.id)

    # A flip.

    def kv_layout(self) -> KvLayout:
        # Layers of drafts are adjacent in a block, those of the model are separate.
        behind = self.layers * self.count * self.block_bytes
        drafts = KvSet(self.drafts, behind, self.draft_bytes, self.drafts * self.draft_bytes, self.draft_bytes)
        return KvLayout(0, self.count * self.block_bytes, self.block_bytes, self.block_bytes, self.count, len(self.free), [drafts] if self.drafts else [])

    def manifest(self) -> Iterable[Request]:
        for s in sorted(self.here.values(), key=lambda s: not s.running):
            yield Request(s.id, s.gateway, s.running, s.computed, s.most, s.blocks, s.state())

    def adopt(self, request: Request) -> Sequence[int]:
        reserved = self.reserved.get(request.request, [])
        if len(request.blocks) - len(reserved) > len(self.free):
            raise NoRoom(f"{len(request.blocks)} blocks of {len(self.free)}")
        blocks = self.reserved.pop(request.request, []) + [self.free.pop() for _ in request.blocks[len(reserved):]]
        tokens, prompt, most, salt = json.loads(request.state)
        self.adopted[request.request] = Sequence_(request.request, request.gateway, tokens, prompt, most, request.computed, blocks, request.running,
                                                     salt)
        return blocks

    def drop(self) -> None:
        for s in self.adopted.values():
            self.free += s.blocks
        self.adopted.clear()

    def gone(self, request: str) -> None:
        self.cancel(request)

    def progress(self) -> Iterable[Request]:
        for s in self.here.values():
            if s.running:
                yield Request(s.id, "", True, s.computed, s.most, s.blocks, b"")

    def reserve(self, request: str, count: int) -> Sequence[int]:
        if count > len(self.free):
            raise NoRoom(f"{count} blocks of {len(self.free)}")
        blocks = [self.free.pop() for _ in range(count)]
        self.reserved.setdefault(request, []).extend(blocks)
        return blocks

    def unreserve(self, request: str) -> None:
        self.free += self.reserved.pop(request)

    def enter(self, maps: Maps, entry: Entry) -> None:
        self.here |= self.adopted
        for s in self.adopted.values():
            self.tell(s)
        self.adopted.clear()
        print(json.dumps({"epoch": maps.epoch, "rank": maps.rank, "entry": entry.name, "requests": len(self.here)}), flush=True)

    def leave(self) -> None:
        self.here.clear()
        self.cached.clear()
        self.kit.cached_none()
        reserved = {block for blocks in self.reserved.values() for block in blocks}
        self.free = [block for block in range(self.count) if block not in reserved]
        print(json.dumps({"epoch": 0, "entry": "LEFT"}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    flags = ("agent-socket", "token-file", "mesh-listen", "serve-listen", "advertise", "ready-file", "tls-ca", "tls-cert", "tls-key")
    for flag in flags:
        parser.add_argument(f"--{flag}", required=flag != "advertise", default="")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=2)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--max-batch-tokens", type=int, default=64)
    parser.add_argument("--draft-layers", type=int, default=0)
    parser.add_argument("--min-step-ms", type=int, default=0)
    parser.add_argument("--max-peer-timeout-ms", type=int, default=0)
    parser.add_argument("--min-peer-timeout-ms", type=int, default=0)
    parser.add_argument("--fault-dir", default="")
    args, _ = parser.parse_known_args()
    kit = Kit.open(**{flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in flags}, device=args.device, block_tokens=args.block_tokens,
                   slab_formats=SlabFormat.GRANULE_MAJOR | SlabFormat.ROW_MAJOR, max_peer_timeout_ms=args.max_peer_timeout_ms,
                   min_peer_timeout_ms=args.min_peer_timeout_ms, min_step_ms=args.min_step_ms, fault_dir=args.fault_dir,
                   settings={"engine": "echo", "max_batch_tokens": args.max_batch_tokens, "draft_layers": args.draft_layers})
    signal.signal(signal.SIGTERM, lambda *_: kit.stop())
    kit.run(Echo(kit, args.step_ms / 1000, args.block_tokens, args.max_batch_tokens, args.draft_layers))
    print("left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
