#!/usr/bin/env python3
"""Runs a bench (`make -s bench NAME=...`), or all, and judges its result.

Without a name the benches are listed. A bench prints JSON lines on stdout and progress on stderr. Its last line is the
summary, which gets `goal`, `pass` and `gates` from the table below, the only place with the goals. A single bench exits
0 if it ran, whatever its result; `all` ends with a table and exits 1 if a goal was missed.

    tests/bench.py [NAME | all | counts | clocks] [--ci]

`counts` are the benches whose figures do not depend on the machine's load: `make test` runs them with `--ci`, that is,
QUICK and with seeds of a fixed date. `clocks`, the others, run only in `make nightly`, in full and alone on the
machine.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CI_DATE = "2026-11-22"  # the date of `make test`'s seeds
NOT_INSTALLED = "not installed"  # a bench's value if the peer to compare with is missing


@dataclasses.dataclass(frozen=True)
class Gate:
    """A figure of the summary ("value" or a metric) and its goal. Work: bytes, counts, ratios of CPU work, the same on
    any machine. Wall: seconds, or ratios of them."""

    figure: str
    goal: float
    least: bool = False  # the figure must be at least the goal; else at most
    wall: bool = False
    missed: bool = False  # a documented miss: not judged by `--ci`
    peer: bool = False  # compared with an external program from `make bench-setup`; not judged without it

    def reached(self, summary, ci=False):
        """None: not judged; `found` has the reason."""
        found = self.found(summary)
        if ci and self.missed:
            return None
        if isinstance(found, str):
            return None if found == NOT_INSTALLED else False
        if found is None or not math.isfinite(found):
            return False
        return found >= self.goal if self.least else found <= self.goal

    def found(self, summary):
        """None: the bench does not report it, or it is not a number. For a peer it may be the text that explains the
        missing number."""
        where = summary if self.figure in ("value", "ratio") else summary.get("metrics", {})
        value = where.get(self.figure)
        if self.peer and isinstance(value, str):
            return value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def most(figure, goal, **which):
    return Gate(figure, goal, **which)


def least(figure, goal, **which):
    return Gate(figure, goal, least=True, **which)


@dataclasses.dataclass(frozen=True)
class Bench:
    what: str
    needs: str  # make targets
    command: str
    gates: tuple
    counts: bool = False  # bytes, moves, simulated seconds: independent of this machine's clocks


def planner(what, name, *gates, counts=False):
    return Bench(what, "setup go", f"build/bin/tangram-bench {name}", gates, counts)


def demo(what, command, *gates):
    return Bench(what, "build model", f"build/bin/tangram-demo {command}", gates)


def eplb_gates():
    for workload in "ACDE":
        yield most(workload + "_full_over_greedy", 3)
        yield most(workload + "_incr_over_greedy", 9)
        yield least(workload + "_balance_over_floor", 0.999)
        yield most(workload + "_moves_over_flashlb", 0.2)
        yield most(workload + "_points_below_flashlb", 2)


BENCHES = {
    "resize-bytes": planner("bytes a resize moves over the lower bound, every P -> Q of 18 public models", "resize-bytes",
                            most("value", 1), least("pairs", 1), counts=True),
    "repair-bytes": planner("bytes that the repair of a lost rank reads over those that no survivor holds, 2 to 64 ranks of 18 public models",
                            "repair-bytes", most("value", 1), least("repairs", 1), counts=True),
    "plan-time": planner("time to plan DeepSeek-V3 32 -> 40 ranks and Qwen3-235B EP8 -> TP8 over a sort of one key per piece and fetch; Kimi-K2 320 -> 384 ranks "
                         "and one of 256 lost over these; growth with ranks; one thread",
                         "plan-time", most("deepseek_v3_32_to_40_over_sort", 9), most("qwen3_235b_ep8_to_tp8_over_sort", 1.2),
                         most("large_over_reference", 4), most("growth_over_n_log_n", 1), most("biggest_part_and_delta_bytes", 256 << 10)),
    "eplb": planner("plan time over a plain greedy's, balance over the floor and moves on workloads A to E, beside FlashLB-, Swift- and "
                    "DeepSeek-like planners, one thread, seeds of DATE=", "eplb", *eplb_gates()),
    "eplb-small": planner("2,000 random small cases against the exact optimum by brute force", "eplb-small",
                          least("value", 0.99), least("exact_share", 0.95), most("showcase_over_optimum", 1 + 1e-9), counts=True),
    "rounds": planner("rounds of the migration schedule over the most moves at a rank", "rounds", most("value", 1), least("schedules", 1), counts=True),
    "predict": planner("next-window balance of placements made from an adaptive forecast (of 15 candidates), against the best, known afterwards, of five of them, three drifts",
                       "predict", least("value", -0.5), counts=True),
    "simulate": planner("seconds of one thread to simulate Mooncake's conversation trace (12,031 requests), two modes and the calibrated policy; seconds simulated in a second",
                        "simulate", most("value", 1, wall=True), least("simulated_per_second", 1000)),
    "policy": planner("sum of request latencies under the calibrated policy over hindsight's, 4 traces on 3 engines' kernels, prior of another engine, 10 % noise",
                      "policy", most("value", 1.03), most("worst", 1.06), most("worst_over_static", 1.02), most("worst_where_static_is_bad", 1.05), counts=True),
    "policy-unseen": planner("the same on 50 traces drawn by the seeds of DATE=", "policy-unseen", most("value", 1.04), most("worst", 1.12, missed=True), counts=True),
    "policy-hybrids": planner("sum of request latencies under the calibrated policy with hybrids to choose (experts sliced over all ranks, attention by data) over that with modes ExpertParallel and TensorParallel alone, the traces and kernels of policy; "
                              "where they are worth most, and least", "policy-hybrids", most("value", 0.9), most("worst", 1.03), counts=True),
    "width": planner("rank-hours of a world of 3 to 8 ranks under the policy of the width over those of the best replica-quantum scaler (Dynamo- and WVA-like, best of a grid on that load), "
                     "Azure's code trace and a generated day on 3 engines' kernels; attainment less theirs", "width", most("value", 0.9, missed=True), least("attainment_over_best", 0, missed=True), counts=True),
    "slo-dynamics": planner("seconds from the command to scale 4 -> 6 ranks until an SLO is held again, pods stand by; up to which growing load the policy of the width holds it, over eight ranks', "
                            "and its rank-hours over theirs", "slo-dynamics", most("value", 20), least("policy_rate_over_8", 1), most("rank_hours_policy_over_8", 0.9), counts=True),
    "rollout": planner("9 x 2,048 long-tailed sequences: makespan of the better mode over the calibrated policy's where the published kernel gap holds; of the better "
                       "mode for each step", "rollout", least("value", 1.16, missed=True), least("worst_over_best_per_step", 1 + 1e-9), counts=True),
    "crossover": planner("requests at which modes ExpertParallel and TensorParallel cross by measured kernels, 2 models on 3 engines, 3 routings, 3 contexts; a step in the mode that a cost model takes for faster which "
                         "began with another engine's table, over one in the faster mode, the worst of 1 to 512 requests", "crossover", most("value", 1.1, missed=True), most("median", 1.02, missed=True), most("over_by_256", 1), least("cases", 1), counts=True),
    "simulate-real": demo("the simulator, calibrated on one load, beside two ranks with a clock (tiny model, 12 times slower) under five others: median error of the median TTFT and TPOT, tokens/s and the "
                          "time of a change of mode, over the larger of 15 % and 1.5 times that between two real runs; QUICK: one other", "simulate-real", most("value", 1, wall=True), *(most(figure + "_error", 0.15, wall=True) for figure in ("tpot", "tokens_per_second")),
                          *(most(figure + "_error", 0.15, missed=True) for figure in ("ttft", "transition")), least("loads", 1)),
    "burst-real": demo("bursts of 80 and 120 requests/s with 5 between (20 times fewer: ranks with a clock, tiny model), by clients' clocks: p99 of the time to the first token and median per later token of four ranks that choose "
                       "their mode, in each phase over the better of both modes alone; what a token takes after 4 -> 6 ranks over before, against the table; QUICK: one burst", "burst-real",
                       most("value", 1.05, wall=True, missed=True), most("ttft", 1.05, wall=True, missed=True), most("grow_error", 0.15, wall=True, missed=True), most("lost", 0), least("requests", 1), least("switches", 1)),
    "recovery": demo("seconds from a blow to one of 6 ranks under load (kill, stop, cut, loss of power) to the first token of the last running request",
                     "recovery --out build/bench/recovery", most("worst_seconds", 4, wall=True),
                     *(most(kind + "_kill_seconds", 1.5, wall=True) for kind in ("engine", "pod")),
                     *(most(kind + "_seconds", 3, wall=True) for kind in ("engine_stop", "node_cut", "node_power")),
                     *(most(kind + "_seconds", 1, wall=True) for kind in ("agent_kill", "agent_stop")), most("lost", 0), least("requests", 1)),
    "false-alarm": demo("fences where nobody dies: an hour of simulated steps with pauses of one rank and of the machine, real load beside busy cores",
                        "false-alarm --out build/bench/false-alarm", most("value", 0), most("lost", 0), least("tokens", 1), least("naive_fences", 1)),
    "front-door": Bench("processor time per token of gateway and text server (64 chats, a token each 20 ms) over that of a plain reverse proxy; seconds from kill -9 of a text server to its next answer, "
                        "median, beside a start with all imports", "build vllm-setup", "build/bin/tangram-demo front-door",
                        (most("value", 4.6, missed=True), most("restart_seconds", 7, wall=True), least("tokens", 1))),
    "vllm-restart": Bench("seconds from kill -9 of an engine of vLLM to the next token of the answer that it was at, median; beside it an engine that nobody forks, and a process of "
                          "stock vLLM from its start to a first token, on the same model", "build model vllm-setup", "build/bin/tangram-demo vllm-restart",
                          (most("value", 3, wall=True), most("over_stock", 0.5), most("different", 0), least("kills", 1))),
    "vllm-overhead": Bench("tokens/s of a rank of vLLM that is served through its gRPC and the gateway, over stock vLLM's in a process on the same core; hidden 2048, 8 layers, 64 experts, "
                           "one and sixteen requests, bf16 and fp32; two ranks over stock vLLM's two of data parallelism with experts spread; the small model is printed", "build model vllm-setup", "build/bin/tangram-demo vllm-overhead", (least("value", 0.85, wall=True), least("two_ranks", 1.0, wall=True))),
    "vllm-transition": Bench("what six streams of vLLM's ranks see of 2 -> 3 -> 2 and ExpertParallel -> TensorParallel -> ExpertParallel: the longest wait for a token over that in as long a time without; tokens/s over before",
                             "build model vllm-setup", "build/bin/tangram-demo vllm-transition", (most("value", 1.5, wall=True), least("rate_over_before", 0.7, wall=True), least("slowest_rate_over_before", 0.7, wall=True, missed=True), most("lost", 0), least("tokens", 1))),
    "vllm-memory": Bench("bytes of a node that a rank of vLLM takes (agent, engine, who forks it; weights once) over those of stock vLLM in a process, bf16 and fp32", "build model vllm-setup",
                         "build/bin/tangram-demo vllm-memory", (most("value", 1, missed=True),)),
    "scale-up": Bench("2 -> 3 ranks of vLLM under load, hidden 2048 in bf16: seconds from the command to the first token of the new rank, over those of the fastest of cold restart, a world beside, "
                      "one on the same memory, another instance; the longest silence over that before; peak memory over cold restart's; ours without standby, peers, zero copy; QUICK: ours and cold restart",
                      "build vllm-setup", "build/bin/tangram-demo scale-up",
                      (most("value", 0.15, wall=True), most("ours_downtime_seconds", 0, missed=True), most("peak_over_cold_restart", 1.05, missed=True), most("ours_broken", 0), most("ours_refused", 0))),
    "control-cost": demo("seconds of each transition of 64 ranks in 9 agents of DeepSeek-V3 (58 x 256) without a byte moved: 48 -> 64 ranks, groups of 8 and "
                         "back, a rank lost; processor seconds of all agents and engines of the one that takes most (the goal on two cores)",
                         "control-cost --out build/bench/control-cost", most("value", 2, wall=True), most("processor_seconds", 4, wall=True),
                         *(most(name + "_seconds", 2, wall=True) for name in ("grow_48_64", "groups_of_8", "experts_again", "repair"))),
    "kv-overhead-ghost": demo("memory that the pools of 8 ranks of Qwen3-235B have in use in a switch of mode with one spare bank, no byte moved, over what they have at rest and the KV of kv-overhead's load; "
                              "their peak over the plan's", "kv-overhead-ghost", most("value", 0.024), most("peak_over_plan", 1)),
    "interference": Bench("six streams decode while a world of 1.1 GiB is resized between 3 and 4 ranks: tokens not served, over those that it serves in the time of a "
                          "plain copy of the bytes; until the copies would have taken 2 s", "build wide-model", "build/bin/tangram-demo interference",
                          (most("value", 1.5, wall=True, missed=True),)),
    "reshard": demo("weights of as many layers of Qwen3-30B-A3B as memory holds between experts whole and sliced over 2, 4 and 8 ranks, a process each, by shared memory: bytes/s over those of "
                    "the best copy between two processes, with the same hash; and row-major, over packing, an all-to-all by way of a layer's buffers, and unpacking",
                    "reshard --out build/bench/reshard", least("value", 0.9, wall=True, missed=True), least("rows_over_staged", 1.5, wall=True)),
    "kv": Bench("KV of one layer of Qwen3-30B-A3B, 256 requests with a trace's lengths on 8 ranks of one node: attention by data to heads split and back; bytes over "
                "the fewest, rate over plain copies of the same ranges", "setup cxx", "build/cxx/agent/store/tangram-kv-move e2e/load/conversation_slice.jsonl",
                (least("value", 0.85, wall=True), most("bytes_over_fewest", 1))),
    "kv-overhead": planner("memory that a switch of Qwen3-235B between EP8 and TP8 with 256 requests of 4,096 tokens needs, with one spare bank, over what a rank holds of weights and KV at rest in the larger of both modes, by the planner's flips; "
                           "KV left for a flip over a link of 450 GB/s, in steps of 30 ms, also of DeepSeek-V3", "kv-overhead", most("value", 0.024), most("flip_steps", 0.5), counts=True),
    "cuda-model": Bench("Qwen3-235B and DeepSeek-V3 between EP8 and TP8 on 8 GPUs, no GPU asked: of the sectors that copies by kernels move those that are full, by the planner's plan; bytes of "
                        "links and kernels; predicted milliseconds beside published ones", "setup go cxx", "build/bin/tangram-bench cuda-model",
                        (least("value", 0.9), most("bytes_over_bound", 1)), counts=True),
    "transport": Bench("bytes between two network namespaces over a veth pair, 1 to 64 MiB at a time, over a plain sender with the best of 1, 2 and 4 connections; "
                       "without TLS also over NIXL and Mooncake (make bench-setup)",
                       "setup cxx", "build/cxx/agent/mover/tangram-transport tests/peers/pair.py",
                       (least("plain_ratio", 0.9, wall=True, missed=True), least("tls_ratio", 0.9, wall=True),
                        *(least(f"over_{peer}", 1, wall=True, peer=True) for peer in ("nixl", "mooncake")))),
    "rank-cost": Bench("a rank of 14,848 pieces (58 x 256 experts, TensorParallel over 8 ranks): commit under its lock, over a sort of one key per piece; prepare, "
                       "retire, heap", "setup cxx", "build/cxx/agent/store/tangram-rank-cost",
                       (most("commit_over_sort", 4), most("commit_ms", 2, wall=True), most("heap_mib", 64), least("pieces", 14848))),
    "micro": Bench("Google Benchmark's view of an agent's index of pieces, proof of a plan, copy and hash, beside a std::map and memcpy", "setup cxx", "python3 tests/microbench.py",
                   (least("value", 0.9, wall=True), most("find_over_map", 1, wall=True))),
    "critical-path": Bench("what a flip adds to its step where KV is copied ahead, four ranks of a small model in one process, contexts of 1,040 tokens and more, ExpertParallel -> TensorParallel -> ExpertParallel: "
                           "bytes in the flip over KV moved; CPU of the step's thread, also over that of the same flips without copies", "setup cxx",
                           "build/cxx/e2e/engine/tangram-critical-path", (most("value", 0.02), most("cpu_over_all_in_the_flip", 1), least("flips", 1))),
    "kv-plan": Bench("KV of 256 requests of 4,096 tokens, 94 layers, 8 ranks, blocks of 16: attention data to heads split over all and back; CPU of the rank that "
                     "needs most for plan, part and proof, also over a sort of one key per strip of the manifest", "setup cxx", "build/cxx/agent/kv/tangram-kv-plan",
                     (most("value", 50, wall=True), most("over_sort", 4), most("unchanged_ms", 0.1, wall=True), most("heap_mib", 16))),
    "cold-start": Bench("first layouts of Qwen3-30B-A3B's layers on 4 ranks, whole experts and shards, from the page cache and from disk: bytes read of the checkpoint over those of "
                        "its tensors; bytes that came to the ranks of one agent in a second of CPU, row-major (granule-major is told), over a plain read of the files with hashing in as many threads",
                        "setup cxx", "build/cxx/agent/store/tangram-cold-start", (most("value", 1), most("kernel_over_checkpoint", 1.001), least("rate_over_plain", 0.9, missed=True))),
    "remap": Bench("mapping one expert of whole pages, 2 to 64 MiB, over a bare MAP_FIXED + MAP_POPULATE of the same pages, and over a copy of them; "
                   "pages are huge if enough of them are free (vm.nr_hugepages)", "setup cxx", "build/cxx/agent/device/tangram-remap",
                   (most("over_bare", 1.15, wall=True), most("over_copy", 0.1, wall=True))),
    "smooth": demo("the longest time between two tokens of a stream in windows with a transition over that in windows of the same length without, medians and 95th percentiles, by clients' clocks: 2 and 4 ranks, ExpertParallel -> "
                   "TensorParallel -> ExpertParallel and 2 -> 3 -> 2, steady decode and a trace, steps as fast as two cores allow and of 100 ms (paced)", "smooth",
                   *(most(figure, 1.5, wall=True) for figure in ("free_median", "free_p95", "paced_median", "paced_p95")), most("lost", 0), least("transitions", 16)),
    "throughput-during": demo("two ranks decode while the world switches and is resized: tokens/s from the command to its end over those before, and how long that lasts over strategy Fast, steps of 100 ms, of 50 ms, and as fast as two cores allow, by clients' clocks",
                              "throughput-during", least("paced_rate_over_before", 0.95, wall=True), least("paced_50_ms_rate_over_before", 0.95, wall=True, missed=True), least("free_rate_over_before", 0.95, missed=True),
                              most("paced_over_fast", 3, wall=True, missed=True), most("lost", 0), least("tokens", 1)),
    "walk": demo("a mode switch of 94 layers x 64 experts on 8 ranks, whose memory has sizes and no bytes, with stub engines at steps of 20 ms: steps for each cycle of the spare banks, "
                 "seconds at 2 spare banks, and the longest time without a step by strategy Fast", "walk",
                 most("value", 2.5, wall=True, missed=True), most("seconds_2_banks", 4, wall=True), most("fast_stall_seconds", 0.5, wall=True)),
    "dispatch": Bench("dispatch and combine of experts' rows, BF16, 4,096 tokens a rank, hidden 7168, 256 experts, top-8; 2, 4 and 8 ranks in processes: packed rows and reduced rows in a second over those of a plain copy of as many bytes, the worst",
                      "setup cxx", "build/cxx/agent/dispatch/tangram-dispatch dispatch", (least("value", 0.7, wall=True, missed=True), least("over_copy_2", 0.7, wall=True))),
    "dispatch-latency": Bench("the same of 1, 8, 32 and 128 tokens, 2 ranks: median over that of a ping-pong of as many bytes through shared memory, the worst; that of gloo's all-to-all, where vLLM's torch is there, over it; 4 and 8 ranks are printed",
                              "setup cxx", "build/cxx/agent/dispatch/tangram-dispatch dispatch-latency build/vllm/bin/python tests/peers/gloo.py", (most("value", 3, wall=True), least("gloo_over", 5, wall=True, peer=True))),
    "dispatch-fp8": Bench("bytes that are dispatched in FP8 with scales over BF16; the relative error of what comes back", "setup cxx", "build/cxx/agent/dispatch/tangram-dispatch dispatch-fp8",
                          (most("value", 0.52), most("relative_error", 0.04)), counts=True),
    "dispatch-masked": Bench("a pair of three ranks of which one is masked over one of two; from SIGSTOP to the mask, beyond the timeout", "setup cxx", "build/cxx/agent/dispatch/tangram-dispatch dispatch-masked",
                             (most("value", 1.05, wall=True), most("ms_beyond_timeout", 10, wall=True))),
    "dispatch-members": Bench("ms of the slowest of 64 ranks to change the members, one joins, one leaves; connections, made before, are told", "setup cxx",
                              "build/cxx/agent/dispatch/tangram-dispatch dispatch-members", (most("value", 20, wall=True),)),
    "transition": demo("time without tokens in each transition of the demo (24 layers, two spare banks: 12 flips of a mode switch), over a plain copy of its bytes plus two steps; "
                       "the longest time between two tokens of a stream, in steps", "local --bench --out build/bench/transition",
                       most("ratio", 3, wall=True), most("longest_gap_steps", 4, wall=True), most("lost", 0), least("tokens", 1)),
}


def judge(bench, summary, ci=False):
    """The summary with goal, pass and gates: the found value, and whether the goal is reached (null: not judged)."""
    gates = [{"figure": g.figure, "found": g.found(summary), "goal": g.goal, "sense": "at least" if g.least else "at most",
              "clock": "wall" if g.wall else "work", "reached": g.reached(summary, ci)} for g in bench.gates]
    return {**summary, "goal": bench.gates[0].goal, "pass": not any(g["reached"] is False for g in gates), "gates": gates}


def run(name, ci, out=sys.stdout):
    """Runs one bench, prints its lines, and returns its judged summary; None: it did not complete."""
    bench = BENCHES[name]
    env = dict(os.environ, QUICK="1", DATE=CI_DATE) if ci else dict(os.environ)
    made = subprocess.run(["make", "-s", *bench.needs.split()], cwd=ROOT, stdout=sys.stderr, check=False)
    if made.returncode != 0:
        return None
    with subprocess.Popen(bench.command.split(), cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        last = None
        for line in process.stdout:
            if last is not None:
                print(last, end="", file=out, flush=True)
            last = line
    if process.returncode != 0 or last is None:
        print(last or "", end="", file=out, flush=True)
        return None
    summary = judge(bench, json.loads(last), ci)
    print(json.dumps(summary), file=out, flush=True)
    return summary


def table(found):
    """Lines of one gate each; found: {name: summary or None}."""
    rows = [("bench", "figure", "found", "", "goal", "")]
    for name, summary in found.items():
        if summary is None:
            rows.append((name, "did not run to its end", "", "", "", "MISSED"))
            continue
        for g in summary["gates"]:
            told = "missing" if g["found"] is None else g["found"] if isinstance(g["found"], str) else f"{g['found']:.5g}"
            goal = "not judged" if g["reached"] is None else f"{g['goal']:.5g}"
            rows.append((name, g["figure"], told, g["sense"], goal, "MISSED" if g["reached"] is False else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="", help="a bench, or all, counts, clocks")
    parser.add_argument("--ci", action="store_true", help="as make test runs counts: QUICK, and fixed seeds")
    args = parser.parse_args()
    if not args.name:
        for name, bench in BENCHES.items():
            print(f"{name:13} {bench.what}")
        print(f"{'all':13} all of them, judged: a table at the end, exit code 1 if a goal is missed")
        return 0
    groups = {"all": list(BENCHES), "counts": [n for n, b in BENCHES.items() if b.counts], "clocks": [n for n, b in BENCHES.items() if not b.counts]}
    if args.name not in groups and args.name not in BENCHES:
        print(f"no bench named '{args.name}'; make bench lists them", file=sys.stderr)
        return 2
    names = groups.get(args.name, [args.name])
    found = {name: run(name, args.ci) for name in names}
    if args.name in groups:
        print("\n".join(table(found)), file=sys.stderr)
    if any(summary is None for summary in found.values()):
        return 1
    judged = args.name in groups or args.ci
    return 1 if judged and not all(summary["pass"] for summary in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
