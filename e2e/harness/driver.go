package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Event is an event of the driver (operator/internal/driver.Event).
type Event struct {
	Flip       int     `json:"flip"`
	Flips      int     `json:"flips"`
	Kind       string  `json:"kind"`
	Phase      string  `json:"phase"`
	BytesDone  uint64  `json:"bytes_done"`
	BytesTotal uint64  `json:"bytes_total"`
	Rate       float64 `json:"bytes_per_second"`
}

// Bytes counts bytes by source.
type Bytes struct {
	Local      uint64 `json:"local"`
	Shared     uint64 `json:"shared"`
	TCP        uint64 `json:"tcp"`
	Wire       uint64 `json:"wire"`
	Checkpoint uint64 `json:"checkpoint"`
	KV         uint64 `json:"kv"`
	KVAhead    uint64 `json:"kv_ahead"` // KV copied before the flips
}

// Seconds has the durations of the phases.
type Seconds struct {
	Plan    float64 `json:"plan"`
	Prepare float64 `json:"prepare"`
	Stage   float64 `json:"stage"`
	Flip    float64 `json:"flip"`
	Retire  float64 `json:"retire"`
}

// Record is the record of a transition (operator/internal/driver.Record).
type Record struct {
	FromEpoch        uint64    `json:"from_epoch"`
	Epoch            uint64    `json:"epoch"`
	TargetHash       string    `json:"target_hash"`
	PlanHash         string    `json:"plan_hash"`
	ExpertBytes      uint64    `json:"expert_bytes"`
	ExpertBoundBytes uint64    `json:"expert_bound_bytes"`
	DenseBytes       uint64    `json:"dense_bytes"`
	DenseBoundBytes  uint64    `json:"dense_bound_bytes,omitempty"` // not in a LayoutTransition
	LocalBytes       uint64    `json:"local_bytes"`
	CheckpointBytes  uint64    `json:"checkpoint_bytes"`
	PlannedPeakBytes uint64    `json:"planned_peak_bytes"`
	PeakBytes        uint64    `json:"peak_bytes"`              // measured
	KVMaxTokens      uint64    `json:"kv_max_tokens,omitempty"` // reserved by requests on the fullest rank at the end
	KVMeanTokens     uint64    `json:"kv_mean_tokens,omitempty"`
	Bytes            Bytes     `json:"bytes"`
	Seconds          Seconds   `json:"seconds"`
	TotalSeconds     float64   `json:"total_seconds"`
	Retries          int       `json:"retries"`
	PlannedFlips     int       `json:"planned_flips"`
	Permits          int       `json:"permits"`
	Calls            uint64    `json:"calls"` // from the driver to agents
	Started          time.Time `json:"started"`
	Ended            time.Time `json:"ended"`
	Error            string    `json:"error"`
}

// Apply runs the driver to a shape ("ExpertParallel" or "TensorParallel", and layer shapes in its flag's syntax). It
// returns the record also with an error, if a plan was tried.
func (w *World) Apply(ctx context.Context, ranks int, mode string, shapes []string, progress func(Event)) (*Record, error) {
	args, err := w.shape(ranks, mode, shapes, nil)
	if err != nil {
		return nil, err
	}
	return w.apply(ctx, args, progress)
}

// ApplyFast is Apply with steps paused during the transition.
func (w *World) ApplyFast(ctx context.Context, ranks int, mode string, shapes []string) (*Record, error) {
	args, err := w.shape(ranks, mode, shapes, nil)
	if err != nil {
		return nil, err
	}
	return w.apply(ctx, append(args, "--pause-steps"), nil)
}

// ApplyInRuns is Apply with at most `flips` flips per permit.
func (w *World) ApplyInRuns(ctx context.Context, ranks int, mode string, flips int) (*Record, error) {
	args, err := w.shape(ranks, mode, nil, nil)
	if err != nil {
		return nil, err
	}
	return w.apply(ctx, append(args, "--run", fmt.Sprint(flips)), nil)
}

// ApplyFromCheckpoint is Apply to an Expert layout that reads missing pieces from the checkpoint, even if other ranks
// hold them.
func (w *World) ApplyFromCheckpoint(ctx context.Context, ranks int) (*Record, error) {
	args, err := w.shape(ranks, "ExpertParallel", nil, nil)
	if err != nil {
		return nil, err
	}
	return w.apply(ctx, append(args, "--from-checkpoint"), nil)
}

// ApplyPlacement runs the driver to an Expert layout with a placement: [MoE layer][rank] experts.
func (w *World) ApplyPlacement(ctx context.Context, ranks int, placement [][][]uint32) (*Record, error) {
	args, err := w.shape(ranks, "ExpertParallel", nil, placement)
	if err != nil {
		return nil, err
	}
	return w.apply(ctx, args, nil)
}

// shape returns the driver's flags of a shape.
func (w *World) shape(ranks int, mode string, layers []string, placement [][][]uint32) ([]string, error) {
	args := []string{"--world-file", w.file, "--ranks", fmt.Sprint(ranks), "--mode", mode, "--spare-banks", fmt.Sprint(w.o.SpareBanks)}
	for _, s := range layers {
		args = append(args, "--layer-shape", s)
	}
	if placement == nil {
		return args, nil
	}
	wire, err := json.Marshal(placement)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(w.o.Dir, "placement.json")
	return append(args, "--placement", file), writeWhole(file, wire)
}

func (w *World) apply(ctx context.Context, args []string, progress func(Event)) (*Record, error) {
	args = append([]string{"apply", "--json-progress", "--log-level", "warn"}, args...)
	cmd := exec.CommandContext(ctx, w.o.tool("tangram-driver"), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var record *Record
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line struct {
			Event  *Event  `json:"event"`
			Record *Record `json:"record"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("the driver says %q: %w", lines.Text(), err)
		}
		if line.Event != nil && progress != nil {
			progress(*line.Event)
		}
		if line.Record != nil {
			record = line.Record
		}
	}
	if err := cmd.Wait(); err != nil {
		return record, fmt.Errorf("tangram-driver %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	if record == nil {
		return nil, fmt.Errorf("the driver gave no record: %s", stderr.String())
	}
	return record, nil
}

// Status returns the status of all agents, by pod.
func (w *World) Status(ctx context.Context) ([]*tangramv1.StatusResponse, error) {
	cmd := exec.CommandContext(ctx, w.o.tool("tangram-driver"), "status", "--world-file", w.file, "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tangram-driver status: %w: %s", err, stderr.String())
	}
	var all []*tangramv1.StatusResponse
	for line := range bytes.Lines(out) {
		s := &tangramv1.StatusResponse{}
		if err := protojson.Unmarshal(line, s); err != nil {
			return nil, fmt.Errorf("status %q: %w", line, err)
		}
		all = append(all, s)
	}
	return all, nil
}
