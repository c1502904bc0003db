package planner_test

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
)

var update = flag.Bool("update", false, "write tests/golden/layouts.json anew")

const goldenFile = "../../../tests/golden/layouts.json"

type goldenRank struct {
	SteadyBytes uint64      `json:"steady_bytes"`
	Pieces      [][8]uint64 `json:"pieces"` // layer, bank, slot, expert, granule start, count, offset, bytes
}

type goldenLayout struct {
	Wire  string       `json:"wire"`
	Hash  string       `json:"hash"`
	Ranks []goldenRank `json:"ranks"`
}

type goldenFlip struct {
	From  int      `json:"from"` // index of the previous layout; -1: none
	To    int      `json:"to"`
	Kind  int32    `json:"kind"`
	Epoch uint64   `json:"epoch"`
	Delta string   `json:"delta"`
	Parts []string `json:"parts"`
}

type goldenCase struct {
	Name        string         `json:"name"`
	Geometry    string         `json:"geometry"`
	Fingerprint string         `json:"fingerprint"`
	ExpertPitch uint64         `json:"expert_pitch"`
	BankPitch   uint64         `json:"bank_pitch"`
	Layouts     []goldenLayout `json:"layouts"`
	Flips       []goldenFlip   `json:"flips"`
}

type golden struct {
	Shards [][6]uint32  `json:"shards"` // granules, group, expert, position -> start, count
	Cases  []goldenCase `json:"cases"`
}

// goldenStep moves a world to a shape, or removes ranks.
type goldenStep struct {
	ranks int
	shape layout.Shape
	lose  []int
}

func (s goldenStep) take(w *world) (*planner.Result, error) {
	if s.lose == nil {
		return w.to(w.ids(s.ranks), s.shape)
	}
	b := &broken{world: w, dead: map[string]bool{}}
	for _, rank := range s.lose {
		b.dead[w.now.Members[rank].Id] = true
	}
	result, err := b.repair()
	if err == nil {
		w.now = result.Final
	}
	return result, err
}

func wire(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return hex.EncodeToString(b)
}

func makeGolden(t *testing.T) golden {
	t.Helper()
	var out golden
	for _, s := range [][4]uint32{{12, 8, 0, 0}, {12, 8, 5, 3}, {10, 3, 7, 2}, {7, 7, 3, 6}, {11, 4, 130, 1}, {16, 1, 9, 0}} {
		run := geometry.ShardOf(s[0], s[1], s[2], s[3])
		out.Shards = append(out.Shards, [6]uint32{s[0], s[1], s[2], s[3], run.Start, run.Count})
	}
	for _, c := range []struct {
		name                      string
		experts, granules, layers uint32
		tail                      uint64
		walk                      []goldenStep
	}{
		{"uneven", 10, 6, 3, 0, []goldenStep{{ranks: 3, shape: expertShape}, {ranks: 4, shape: expertShape}, {ranks: 4, shape: tensorShape}, {ranks: 3, shape: expertShape}}},
		{"tail and groups", 7, 5, 4, 40, []goldenStep{{ranks: 4, shape: layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2, AttentionGroup: 4}}}},
			{ranks: 5, shape: tensorShape}, {ranks: 2, shape: expertShape}}},
		// Rank 1 is lost in TensorParallel: positions are doubled, and a new member takes them over in place. Then two
		// are lost in Expert.
		{"repaired", 9, 7, 4, 40, []goldenStep{{ranks: 4, shape: tensorShape}, {lose: []int{1}}, {ranks: 4, shape: tensorShape}, {ranks: 4, shape: expertShape}, {lose: []int{0, 2}},
			{ranks: 3, shape: expertShape}}},
	} {
		v := view(t, shape(c.experts, c.granules, c.layers, c.tail))
		w := &world{v: v, spare: 2}
		gc := goldenCase{Name: c.name, Geometry: wire(t, v.Proto), Fingerprint: hex.EncodeToString(v.Fingerprint),
			ExpertPitch: v.ExpertPitch, BankPitch: v.BankPitch}
		for _, step := range c.walk {
			result, err := step.take(w)
			require.NoError(t, err)
			for i, flip := range result.Plan.Flips {
				l := result.Layouts[i]
				hash, err := layout.Hash(l)
				require.NoError(t, err)
				gl := goldenLayout{Wire: wire(t, l), Hash: hex.EncodeToString(hash)}
				for r := range l.Members {
					gr := goldenRank{SteadyBytes: layout.SteadyBytes(l, v, uint32(r)), Pieces: [][8]uint64{}}
					for _, p := range layout.Pieces(l, v, uint32(r)) {
						gr.Pieces = append(gr.Pieces, [8]uint64{uint64(p.Layer), uint64(p.Bank), uint64(p.Slot), uint64(p.Expert),
							uint64(p.Run.Start), uint64(p.Run.Count), p.Offset, p.Bytes})
					}
					gl.Ranks = append(gl.Ranks, gr)
				}
				gf := goldenFlip{From: len(gc.Layouts) - 1, To: len(gc.Layouts), Kind: int32(flip.Kind), Epoch: flip.Epoch,
					Delta: wire(t, flip.Delta)}
				for _, part := range flip.Parts {
					gf.Parts = append(gf.Parts, wire(t, part))
				}
				gc.Layouts, gc.Flips = append(gc.Layouts, gl), append(gc.Flips, gf)
			}
		}
		out.Cases = append(out.Cases, gc)
	}
	return out
}

// The C++ twin reads the same file. Run with -update after a deliberate change.
func TestGoldenFileIsCurrent(t *testing.T) {
	got, err := json.MarshalIndent(makeGolden(t), "", " ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(goldenFile, append(got, '\n'), 0o600))
	}
	want, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}
