package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"tangram.dev/e2e/harness"
)

// reshard bench: real agents, one process per rank, hold layers of the experts of Qwen3-30B-A3B (all zeros: a hole in a
// file), shard them over all ranks and back. The result is the bytes that agents fetched, also from their own memory,
// over the staging time of the slowest agent, both by the agents' counters; for comparison, the best copy between two
// processes. Then the same in row-major slabs, the format of other engines, compared with their method: pack,
// all-to-all, unpack, through buffers for the whole layer and through buffers that fit a cache.
func reshard(ctx context.Context, o options) error {
	free, huge := freeMemory()
	layers, widths, rounds := layersIn(free), []int{2, 4, 8}, 5
	if os.Getenv("QUICK") != "" {
		layers, widths, rounds = 1, []int{4}, 3
	}
	shape := harness.Qwen3MoE30B(layers)
	checkpoint := filepath.Join(o.out, "checkpoint")
	if err := harness.HollowCheckpoint(checkpoint, shape); err != nil {
		return err
	}
	say("%d layers in %d MiB of %s", layers, free>>20, map[bool]string{true: "huge pages", false: "memory"}[huge])
	lines := json.NewEncoder(os.Stdout)
	worst, metrics := map[string]float64{granuleMajor: math.Inf(1), rowMajor: math.Inf(1)}, map[string]any{}
	for _, format := range []string{granuleMajor, rowMajor} {
		for _, ranks := range widths {
			ratios, err := reshardAt(ctx, o, reshardCase{checkpoint, shape, format, ranks, rounds, huge}, lines)
			if err != nil {
				return fmt.Errorf("%s, %d ranks: %w", format, ranks, err)
			}
			for mode, ratio := range ratios {
				metrics[fmt.Sprintf("%s_%s_%d_ranks", strings.ReplaceAll(format, "-", "_"), mode, ranks)] = ratio
				worst[format] = min(worst[format], ratio)
			}
		}
	}
	metrics["rows_over_staged"] = worst[rowMajor]
	return lines.Encode(map[string]any{"bench": "reshard", "value": worst[granuleMajor], "unit": "of the bytes/s of the best hashed copy between two processes, by the slowest agent's seconds of staging; the worst width and direction",
		"ceiling": 1, "ratio": worst[granuleMajor], "metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "layers": layers, "rounds": rounds, "huge_pages": huge}})
}

const (
	hugePage     = 2 << 20
	granuleMajor = "granule-major"
	rowMajor     = "row-major"
)

type reshardCase struct {
	checkpoint    string
	shape         harness.Shape
	format        string
	ranks, rounds int
	huge          bool
}

// expertBytes is the size of a layer's experts.
func expertBytes(shape harness.Shape) uint64 {
	return uint64(shape.Experts) * uint64(3*shape.Hidden*shape.Inner*2)
}

// layersIn returns the number of layers that fit, at least one: the experts at source and target, and as much again for
// the ceiling's copies, unused parts of pages, and agents.
func layersIn(bytes uint64) int {
	return int(max(1, bytes/(3*expertBytes(harness.Qwen3MoE30B(1)))))
}

// freeMemory in bytes: of the pool of huge pages, if it holds a layer, else of the kernel.
func freeMemory() (bytes uint64, huge bool) {
	if pool := freeHugePages(); pool >= 3*expertBytes(harness.Qwen3MoE30B(1)) {
		return pool, true
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, false
	}
	return info.Freeram * uint64(info.Unit), false
}

// freeHugePages returns the free bytes of the machine's pool.
func freeHugePages() uint64 {
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		return 0 // this kernel has none
	}
	pages, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return pages * hugePage
}

// reshardAt returns the median ratio by target mode.
func reshardAt(ctx context.Context, o options, c reshardCase, lines *json.Encoder) (map[string]float64, error) {
	const granuleRows = 96 // the inner 768 rows over 8 ranks
	shape, ranks, huge := c.shape, c.ranks, c.huge
	weights := uint64(shape.Layers) * expertBytes(shape)
	pods := make([]int, ranks)
	for i := range pods {
		pods[i] = 1
	}
	options := harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: c.checkpoint, Pods: pods, StubEngines: true, OneNode: true, SlabFormat: c.format,
		Granule: granuleRows, Memory: 2*weights/uint64(ranks) + 64<<20, KV: 2 << 20, SpareBanks: shape.Layers}
	if huge {
		// Experts begin at page boundaries.
		options.HugePages, options.PageBytes, options.Memory = true, hugePage, options.Memory+2*uint64(shape.Layers*shape.Experts)*hugePage/uint64(ranks)
	}
	w, err := harness.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, ranks, "ExpertParallel", nil, nil); err != nil {
		return nil, err
	}
	found := map[string][]float64{}
	for range c.rounds {
		for _, mode := range []string{"TensorParallel", "ExpertParallel"} {
			peer, err := peerOf(ctx, o, c, 3*granuleRows*shape.Hidden*2)
			if err != nil {
				return nil, err
			}
			before, err := stageSeconds(ctx, w)
			if err != nil {
				return nil, err
			}
			r, err := w.Apply(ctx, ranks, mode, nil, nil)
			if err != nil {
				return nil, err
			}
			after, err := stageSeconds(ctx, w)
			if err != nil {
				return nil, err
			}
			slowest := 0.0
			for agent, seconds := range after {
				slowest = max(slowest, seconds-before[agent])
			}
			rate := float64(r.Bytes.Local+r.Bytes.Shared+r.Bytes.TCP) / slowest / 1e9
			found[mode] = append(found[mode], rate/peer.rate())
			say("%s, %d ranks, %s: %.2f GB/s, %s; staged in %.2f s, %.2f s for the driver, %d flips", c.format, ranks, mode, rate, peer, slowest, r.Seconds.Stage, r.PlannedFlips)
			if err := lines.Encode(map[string]any{"format": c.format, "ranks": ranks, "to": mode, "gb_per_s": rate, "peer": peer, "ratio": rate / peer.rate(), "shared_bytes": r.Bytes.Shared,
				"tcp_bytes": r.Bytes.TCP, "local_bytes": r.Bytes.Local, "stage_seconds": slowest, "seconds": r.Seconds, "total_seconds": r.TotalSeconds, "flips": r.PlannedFlips}); err != nil {
				return nil, err
			}
		}
	}
	medians := map[string]float64{}
	for mode, ratios := range found {
		slices.Sort(ratios)
		medians[mode] = ratios[len(ratios)/2]
	}
	return medians, nil
}

// stageSeconds sums the staging times of ended attempts, by agent.
func stageSeconds(ctx context.Context, w *harness.World) (map[string]float64, error) {
	out := map[string]float64{}
	for _, url := range w.AgentMetricsURLs() {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(reply.Body)
		if err = errors.Join(err, reply.Body.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
		for _, m := range families["tangram_agent_attempt_phase_seconds_total"].GetMetric() {
			if m.GetLabel()[0].GetValue() == "stage" {
				out[url] = m.GetCounter().GetValue()
			}
		}
	}
	return out, nil
}

// copyRates are the results of agent/mover/copy_main.cc, in GB/s.
type copyRates struct {
	Copy    float64 `json:"gb_per_s,omitempty"`
	Map     float64 `json:"map_gb_per_s,omitempty"` // of existing memory, page by page, with one thread
	Unmap   float64 `json:"unmap_gb_per_s,omitempty"`
	Staged  float64 `json:"staged_gb_per_s,omitempty"`  // through buffers of a layer's size
	Blocked float64 `json:"blocked_gb_per_s,omitempty"` // through buffers that fit a cache
}

// rate is the rate that ours is compared with.
func (r copyRates) rate() float64 { return max(r.Copy, r.Staged) }

func (r copyRates) String() string {
	if r.Copy > 0 {
		return fmt.Sprintf("a copy %.2f", r.Copy)
	}
	return fmt.Sprintf("packed and unpacked %.2f, in a cache %.2f", r.Staged, r.Blocked)
}

// peerOf measures the peer of a case: the best copy between two processes in units of a granule or, for row-major
// shards, the best method that packs and unpacks.
func peerOf(ctx context.Context, o options, c reshardCase, unit int) (copyRates, error) {
	if c.format == rowMajor {
		return measureCopy(ctx, o, c.huge, "rows", strconv.Itoa(c.shape.Hidden), strconv.Itoa(c.shape.Inner), strconv.Itoa(c.ranks))
	}
	return measureCopy(ctx, o, c.huge, strconv.Itoa(unit))
}

func measureCopy(ctx context.Context, o options, huge bool, what ...string) (out copyRates, err error) {
	binary := filepath.Join(o.root, "build/cxx/agent/mover/tangram-copy")
	args := append(slices.Clone(what), strconv.Itoa(512<<20), "3")
	if huge {
		args = append(args, "huge")
	}
	told, err := exec.CommandContext(ctx, binary, args...).Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w", binary, err)
	}
	return out, json.Unmarshal(told, &out)
}
