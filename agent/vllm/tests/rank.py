"""The one rank of a World: its client, its layout, and an EngineCore over both."""

import pathlib
import time

import torch
from tangram_client import Client, EventKind, SlabFormat
from tangram_vllm import binding, engine
from tangram_vllm.exchange import LocalExchange
from tangram_vllm.families import family_of
from tangram_vllm.ops import Operator, Placed, Table
from world import PATIENCE_S, World

DTYPES = {1: torch.float32, 2: torch.bfloat16}


class Rank:
    """Enters the first layout. `make_core` may be called several times: engines over the same weights, each with a part of the KV region."""

    def __init__(self, world: World, config: dict) -> None:
        self.client = Client.attach(world.socket, world.token, mesh_endpoint="127.0.0.1:9", frontend="127.0.0.1:9", kv_block_tokens=32, mixed_layouts=True,
                                    attention_data_only=True, slab_formats=SlabFormat.GRANULE_MAJOR | SlabFormat.ROW_MAJOR)
        driver, end = world.apply(), time.monotonic() + PATIENCE_S
        while driver.poll() is None:
            event = self.client.poll(50)
            if event is not None and event.kind == EventKind.PREPARE:
                self.client.prepared(event.attempt)
            if self.client.maps is not None:
                self.client.step_done()  # the driver waits for it at the end
            if time.monotonic() > end:
                raise TimeoutError("the layout did not come into force")
        if driver.returncode or self.client.maps is None:
            raise RuntimeError(f"tangram-driver ended with {driver.returncode}, maps are {self.client.maps}")
        self.family = family_of(config)
        self.dense = {name: torch.from_dlpack(self.client.dense(name)) for name in self.client.dense_names}
        self.kv = torch.from_dlpack(self.client.kv)
        self.exchange = LocalExchange(self.tables(), Operator())

    def tables(self) -> dict[int, Table]:
        model, maps = self.client.model, self.client.maps
        out = {}
        for layer in maps.layers:
            mine = [Placed(e, p.granule_count, p.address) for e, expert in enumerate(layer.experts) for p in expert.alternatives[0] if p.rank == maps.rank]
            if mine:
                out[layer.layer] = Table(model.hidden, model.granule_rows, DTYPES[model.dtype], int(model.slab_format), mine)
        return out

    def make_core(self, folder: pathlib.Path, kv: torch.Tensor, exchange=None, **settings):
        """`kv`: a part of the region."""
        binding.bind(binding.Binding(self.family, self.dense, kv, exchange or self.exchange))
        (folder / "config.json").write_bytes(self.client.model.config_json)
        return engine.make_core(folder, engine.Settings(dtype="float32", kv_bytes=kv.nbytes, max_model_len=512, max_batch_tokens=128, max_requests=8, **settings))
