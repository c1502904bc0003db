#!/usr/bin/env python3
"""gloo's all-to-all, through torch, as a peer of `dispatch-latency`: a row for each token and rank there, and as much
back. Rows are neither packed by expert nor summed. `gloo.py RANKS ROUNDS BYTES...`: for each number of bytes from rank
to rank, a line of JSON with the median and the 99th percentile of a pair in microseconds; {"error": ...} without torch.
"""

import json
import os
import sys
import tempfile
import time


def rank_of(rank, ranks, rounds, sizes, meet):
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=ranks)
    for size in sizes:
        there, came, back = (torch.zeros(ranks * size, dtype=torch.uint8) for _ in range(3))
        took = []
        for _ in range(rounds + 20):
            begin = time.perf_counter()
            distributed.all_to_all_single(came, there)
            distributed.all_to_all_single(back, came)
            took.append(time.perf_counter() - begin)
        took = sorted(took[20:])
        if rank == 0:
            line = {"bytes": size, "p50_us": took[len(took) // 2] * 1e6, "p99_us": took[len(took) * 99 // 100] * 1e6}
            print(json.dumps(line), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    ranks, rounds, *sizes = map(int, sys.argv[1:])
    try:
        import torch  # noqa: F401
    except ImportError as why:
        print(json.dumps({"error": str(why)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                try:
                    rank_of(rank, ranks, rounds, sizes, os.path.join(folder, "meet"))
                except BaseException as why:  # otherwise the others wait for it
                    print(json.dumps({"error": repr(why)}), flush=True)
                    os._exit(1)
                os._exit(0)
            children.append(child)
        bad = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(bad))


if __name__ == "__main__":
    main()
