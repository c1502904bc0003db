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

// exampleLoad is the recording that docs/placement.md follows: 3 layers of 16 experts, 4 windows.
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

func TestTheExampleLoadIsAsMade(t *testing.T) {
	path := filepath.Join(docs, "placement", "loads.json")
	want := exampleLoad(t)
	if *update {
		require.NoError(t, os.WriteFile(path, want, 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// Outputs are what testdata says, and docs/placement.md quotes those that it tells of whole.
func TestGoldenOutputs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docs, "placement.md"))
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		inDocs bool
		args   string
	}{
		{"balance", true, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.002"},
		{"balance-capped", true, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.002 --max-moves 6"},
		{"balance-dear", true, "balance --load docs/placement/loads.json --ranks 4 --redundant-experts 4 --price 0.5"},
		{"balance-budget", true, "balance --load docs/placement/loads.json --ranks 4 --budget-curve 16 --expert-bytes 9437184 --block-bytes 1572864 --kv-blocks 400 --kv-demand 360 --loss-per-block 0.002 --moe-seconds 0.012 --other-seconds 0.008 --lines 1"},
		{"balance-full.json", false, "balance --load docs/placement/loads.json --ranks 4 --slots 5 --nodes 2 --mode full -o json"},
		{"balance.yaml", false, "balance --load docs/placement/loads.json --ranks 2 --demand last --max-moves 3 -o yaml"},
		{"plan-resize", true, "plan --geometry Qwen3-30B-A3B --from-ranks 4 --ranks 6 --lines 4"},
		{"plan-switch", false, "plan -f charts/tangram/samples/moedeployment.yaml --geometry Qwen3-30B-A3B --from-ranks 4 --from-mode Tensor --lines 4"},
		{"plan-resize.json", false, "plan --geometry gpt-oss-20b --from-ranks 2 --ranks 1 -o json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(strings.NewReplacer("docs/", docs+"/", "charts/", "../../../charts/").Replace(c.args))
			code, out, errs := call("", args...)
			require.Zero(t, code, errs)
			path := filepath.Join("testdata", c.name)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(out), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), out)
			if c.inDocs {
				require.Contains(t, string(page), "$ tangram "+c.args+"\n"+out, "docs/placement.md tells another story")
			}
		})
	}
}
