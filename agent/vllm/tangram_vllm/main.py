"""tangram-vllm: vLLM as the engine of one rank. Takes the flags of tangram-engine."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from tangram_client import SlabFormat
from tangram_engine import Kit

from .contract import VERSION

ENDING = (signal.SIGTERM, signal.SIGINT)
MOST_ROWS = 65536  # of a rank in a step; a rank that announces more ends (kMostRows in agent/engine/turn/control.h)


def rows(given: str) -> int:
    """The maximum number of tokens of a rank in a step."""
    if not 1 <= (tokens := int(given)) <= MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{tokens} is not between 1 and {MOST_ROWS}, the maximum number of rows of a rank in one step")
    return tokens


def flags() -> argparse.ArgumentParser:
    # No abbreviations: users give flags in spec.engine.args too, and the API rejects the operator's flags by full name.
    parser = argparse.ArgumentParser(prog="tangram-vllm", description="vLLM as an engine of Tangram: serves one rank with the memory of its agent.",
                                     allow_abbrev=False)
    for name, help_ in (("agent-socket", "path of the agent's UNIX socket"), ("token-file", "file with the engine token of the pod"),
                        ("tls-ca", "PEM file of the CA"), ("tls-cert", "PEM file of this engine's certificate"),
                        ("tls-key", "PEM file of its private key")):
        parser.add_argument(f"--{name}", required=True, help=help_)
    for name, default, help_ in (("mesh-listen", "127.0.0.1:0", "host:port of the mesh for other engines; port 0: any; default: %(default)s"),
                                 ("serve-listen", "127.0.0.1:0", "host:port for gateways; port 0: any; default: %(default)s"),
                                 ("advertise", "", "host name or address under which others reach this engine"),
                                 ("ready-file", "", "file to write after the attach: JSON with the actual endpoints; empty: not written"),
                                 ("log-level", "info", "log level of the kit; default: %(default)s"),
                                 ("fault-dir", "", "for tests: directory of faults to arm at run time")):
        parser.add_argument(f"--{name}", default=default, help=help_)
    for name, value, help_ in (("device", 0, "index of the rank in the pod, from 0"),
                               ("agent-wait-seconds", 60, "time to wait for the agent at the start, in seconds"),
                               ("block-tokens", 32, "size of a KV block in tokens, a multiple of 32"),
                               ("max-running", 64, "maximum number of running requests of this rank"),
                               ("max-model-len", 2048, "maximum number of tokens of prompt and answer"),
                               ("max-peer-timeout-ms", 10000, "maximum timeout for an unresponsive peer, in milliseconds"),
                               ("min-peer-timeout-ms", 1000, "minimum timeout for an unresponsive peer, in milliseconds; between the two it follows the step times"),
                               ("min-step-ms", 0, "minimum duration of a step with work, in milliseconds"),
                               ("kv-ahead-ms", 1000, "maximum time that a flip waits, while steps continue, for KV copies ahead of it, in milliseconds; -1: no copies ahead"),
                               ("threads", 1, "number of threads that compute a step")):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{help_}; default: %(default)s")
    parser.add_argument("--max-batch-tokens", type=rows, default=512, help=f"maximum number of tokens in a step, 1 to {MOST_ROWS}; default: %(default)s")
    parser.add_argument("--insecure-fabric", action="store_true", help="mesh without TLS, for isolated networks only")
    parser.add_argument("--private-experts", action="store_true", help="for benchmarks: compute with copies of the experts, made again in each layout")
    return parser


def serve(args: argparse.Namespace) -> int:
    """Runs the engine until a signal. Returns the exit code; raises an error that makes the rank unfit."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # before other threads start, because they inherit the mask
    from .rank import Rank  # vLLM's imports take seconds: bad flags are reported before

    kit = Kit.open(
        agent_socket=args.agent_socket, token_file=args.token_file, mesh_listen=args.mesh_listen, serve_listen=args.serve_listen, tls_ca=args.tls_ca,
        tls_cert=args.tls_cert, tls_key=args.tls_key, block_tokens=args.block_tokens, device=args.device, agent_wait_seconds=args.agent_wait_seconds,
        advertise=args.advertise, insecure_fabric=args.insecure_fabric, ready_file=args.ready_file,
        slab_formats=SlabFormat.GRANULE_MAJOR | SlabFormat.ROW_MAJOR, max_peer_timeout_ms=args.max_peer_timeout_ms, min_peer_timeout_ms=args.min_peer_timeout_ms,
        log_level=args.log_level, min_step_ms=args.min_step_ms, fault_dir=args.fault_dir, kv_ahead_ms=args.kv_ahead_ms or 1,
        settings={"engine": "vllm", "version": VERSION, "max_batch_tokens": args.max_batch_tokens, "max_model_len": args.max_model_len},
    )
    # Python runs signal handlers between two instructions of the main thread, and outside a world the kit calls no
    # Python code: so a thread waits for the signal.
    threading.Thread(target=lambda: (signal.sigwait(ENDING), kit.stop()), daemon=True).start()
    kit.run(Rank(kit, max_model_len=args.max_model_len, max_batch_tokens=args.max_batch_tokens, max_requests=args.max_running, block_tokens=args.block_tokens,
                 threads=args.threads, private_experts=args.private_experts))
    return 0


def main(arguments: list[str] | None = None) -> int:
    return serve(flags().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
