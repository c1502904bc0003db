package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/load"
)

var update = flag.Bool("update", false, "write the example's load and the golden outputs anew: go test ./cmd/tangram -update")

const docs = "../../../docs"

// exampleLoad is the recording in docs/placement.md: 3 layers of 16 experts, 4 windows.
func exampleLoad(t *testing.T) []byte {
	t.Helper()
	g, err := load.NewLogNormal(load.Shape{Layers: 3, Experts: 16, Assignments: 4000, Seed: 6}, 1, .9)
	require.NoError(t, err)
	trace := &load.Trace{}
	for range 4 {
		trace.Windows = append(trace.Windows, g.Next())
	}
	var text bytes.Buffer
	require.NoError(t, trace.WriteJSON(&text))
	return bytes.ReplaceAll(text.Bytes(), []byte("],["), []byte("],\n["))
}

func TestExampleLoadIsUpToDate(t *testing.T) {
	path := filepath.Join(docs, "placement", "loads.json")
	want := exampleLoad(t)
	if *update {
		require.NoError(t, os.WriteFile(path, want, 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// Outputs equal those in testdata, and docs pages quote them completely where they use them.
func TestGoldenOutputs(t *testing.T) {
	const placement, experiments, simulator, nowhere = "placement.md", "experiments.md", "simulator.md", ""
	for _, c := range []struct {
		name string
		page string
		args string
	}{
		{"balance", placement, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.002"},
		{"balance-capped", placement, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.002 --max-moves 6"},
		{"balance-dear", placement, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.5"},
		{"balance-budget", placement, "balance --load docs/placement/loads.json --ranks 4 --budget-curve 16 --expert-bytes 9437184 --block-bytes 1572864 --kv-blocks 400 --kv-demand 360 --loss-per-block 0.002 --moe-seconds 0.012 --other-seconds 0.008 --lines 1"},
		{"balance-full.json", nowhere, "balance --load docs/placement/loads.json --ranks 4 --slots 5 --nodes 2 --mode full -o json"},
		{"balance.yaml", nowhere, "balance --load docs/placement/loads.json --ranks 2 --demand last --max-moves 3 -o yaml"},
		{"plan-resize", placement, "plan --geometry Qwen3-30B-A3B --from-ranks 4 --ranks 6 --lines 4"},
		{"plan-switch", nowhere, "plan -f examples/cpu-demo/moedeployment.yaml --geometry Qwen3-30B-A3B --from-ranks 4 --from-mode TensorParallel --granule-rows 16 --spare-banks 3 --lines 4"},
		{"plan-resize.json", nowhere, "plan --geometry gpt-oss-20b --from-ranks 2 --ranks 1 -o json"},
		{"simulate-width", simulator, "simulate --rates 240x10,600x45,600x10 --prompt 1500 --answer 150 --model Qwen3-30B-A3B --rank-gb 48 --truth trtllm --ranks 3 --policy ExpertParallel,width --min-ranks 2 --max-ranks 8 --ttft 2 --tpot 0.05"},
		{"recommend-redundant", simulator, "simulate recommend --rates 60x150 --prompt 1000 --answer 100 --model Qwen3-30B-A3B --truth sglang --ttft 0.5 --tpot 0.05 --ranks 8 --expert-skew 2 --redundant-experts 8"},
		{"crossover", experiments, "simulate crossover --routing balanced,power_law_1.2 --context 512,2048,8192"},
		{"crossover-small", experiments, "simulate crossover --model Qwen3-30B-A3B --ranks 4"},
		{"crossover-steps", experiments, "simulate crossover --truth vllm --steps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(strings.NewReplacer("docs/", docs+"/", "examples/", "../../../examples/").Replace(c.args))
			code, out, errs := call("", args...)
			require.Zero(t, code, errs)
			path := filepath.Join("testdata", c.name)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(out), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), out)
			if c.page != nowhere {
				page, err := os.ReadFile(filepath.Join(docs, c.page))
				require.NoError(t, err)
				require.Contains(t, string(page), "$ tangram "+c.args+"\n"+out, "docs/%s tells another story", c.page)
			}
		})
	}
}

// Pictures equal the output of the commands that the pages name.
func TestPicturesAreUpToDate(t *testing.T) {
	for _, c := range []struct{ page, picture, command string }{
		{"policy.md", "policy/bursts.svg",
			"tangram simulate --model Qwen3-30B-A3B --rates 200x5,100x60,200x20,30x150,200x5 --prompt 1024 --answer 512 --truth trtllm --policy ExpertParallel,TensorParallel,calibrated --svg "},
		{"experiments.md", "experiments/rollout.svg", "tangram simulate --rollout 2048 --policy ExpertParallel,TensorParallel,rollout,calibrated --svg "},
		{"experiments.md", "experiments/crossover.svg", "tangram simulate crossover --routing balanced,power_law_1.2 --svg "},
	} {
		t.Run(c.picture, func(t *testing.T) {
			path := filepath.Join(docs, c.picture)
			page, err := os.ReadFile(filepath.Join(docs, c.page))
			require.NoError(t, err)
			require.Contains(t, string(page), c.command+"docs/"+c.picture)
			made := filepath.Join(t.TempDir(), "made.svg")
			code, _, errs := call("", strings.Fields(c.command + made)[1:]...)
			require.Zero(t, code, errs)
			got, err := os.ReadFile(made)
			require.NoError(t, err)
			if *update {
				require.NoError(t, os.WriteFile(path, got, 0o644)) //nolint:gosec // a page of the documentation
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "draw it again: go test ./cmd/tangram -update")
		})
	}
}
