package kernels

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write tests/golden/pace.json anew: go test ./pkg/kernels -run Golden -update")

const golden = "../../../tests/golden/pace.json"

func compile(t *testing.T, model, engine, routing string, ranks int) *Compiled {
	t.Helper()
	table, err := Open(model)
	require.NoError(t, err)
	c, err := Compile(table, view(t, model), engine, routing, ranks)
	require.NoError(t, err)
	return c
}

// again returns the table as a reader of the file has it.
func again(t *testing.T, c *Compiled) *Compiled {
	t.Helper()
	var text bytes.Buffer
	require.NoError(t, c.WriteJSON(&text))
	out, err := ReadCompiled(&text)
	require.NoError(t, err)
	return out
}

// drawn returns random loads of a shape's groups, from one request to beyond the measured sizes.
func drawn(r *rand.Rand, st *Step) []Load {
	loads := make([]Load, st.Shape().Groups())
	size := 1 + r.IntN(1<<r.IntN(14))
	for i := range loads {
		l := &loads[i]
		if r.IntN(4) > 0 {
			l.Decode = r.IntN(size + 1)
			l.Context = l.Decode * (1 + r.IntN(1<<r.IntN(19)))
		}
		if r.IntN(3) == 0 {
			from := r.IntN(1 << r.IntN(18))
			l.Prefill = 1 + r.IntN(1<<r.IntN(15))
			l.Chunks = st.Chunk(from, from+l.Prefill)
		}
	}
	return loads
}

// A compiled table, written and read, gives the same seconds as its source table.
func TestCompiledMatchesTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for model, ranks := range map[string]int{"qwen3-30b-a3b": 4, "qwen3-235b-a22b": 8} {
		c := again(t, compile(t, model, "trtllm", "power_law_1.2", ranks))
		for i := range c.Shapes {
			shape := c.Shapes[i].Shape()
			if shape.Ranks&(shape.Ranks-1) != 0 {
				continue // between measured widths
			}
			compiled, err := c.Step(shape)
			require.NoError(t, err)
			plain := step(t, model, "trtllm", "power_law_1.2", shape)
			for range 50 {
				loads := drawn(r, plain)
				require.InEpsilon(t, plain.Skewed(loads, 1.3)+1e-12, compiled.Skewed(loads, 1.3)+1e-12, 2e-4, "%v %+v", shape, loads)
			}
		}
	}
}

// All parts of an unmeasured width are between those of its neighbors.
func TestUnmeasuredWidthsAreInterpolated(t *testing.T) {
	c := compile(t, "Qwen3-30B-A3B", "vllm", "balanced", 8)
	at := func(s Shape) *Step {
		st, err := c.Step(s)
		require.NoError(t, err)
		return st
	}
	for _, of := range []func(int) Shape{Expert, Tensor} {
		four, six, eight := at(of(4)), at(of(6)), at(of(8))
		for _, n := range []int{1, 24, 240, 2400} {
			// Each group as full as in a world of six ranks.
			low, mid, high := four.moe.at(n), six.moe.at(n), eight.moe.at(n)
			require.LessOrEqual(t, min(low, high)*.999, mid, "%v %d", six.Shape(), n)
			require.GreaterOrEqual(t, max(low, high)*1.001, mid, "%v %d", six.Shape(), n)
			share := math.Log(6./4) / math.Log(8./4)
			require.InEpsilon(t, math.Pow(low, 1-share)*math.Pow(high, share), mid, .02)
		}
	}
	_, err := c.Step(Shape{6, 2, 1})
	require.ErrorContains(t, err, "not in the compiled table")
	table, err := Open("Qwen3-30B-A3B")
	require.NoError(t, err)
	_, err = Compile(table, view(t, "Qwen3-30B-A3B"), "vllm", "balanced", 9)
	require.ErrorContains(t, err, "beyond what was measured")
	_, err = Compile(table, view(t, "Qwen3-30B-A3B"), "gpt", "balanced", 8)
	require.ErrorContains(t, err, "was not measured")
}

func TestBadCompiledTables(t *testing.T) {
	good := compile(t, "Qwen3-30B-A3B", "vllm", "balanced", 1)
	var text bytes.Buffer
	require.NoError(t, good.WriteJSON(&text))
	for from, c := range map[string]struct{ to, want string }{
		`"tangram-pace-1"`:      {`"tangram-pace-2"`, "tangram-pace-2"},
		`"points_per_octave":8`: {`"points_per_octave":4`, "4 points in an octave"},
		`"layers":48`:           {`"layers":0`, "0 layers"},
		`"moe":[`:               {`"moe":[1,`, "194 points, want 193"},
		`"dense":[`:             {`"dense":[-1,`, "194 points"},
		`"attention_group":1`:   {`"attention_group":2`, "divide"},
		`"shapes":[`:            {`"shapes":[],"old":[`, "unknown field"},
		`"generation":[[`:       {`"generation":[[0,`, "no time"},
	} {
		_, err := ReadCompiled(strings.NewReader(strings.Replace(text.String(), from, c.to, 1)))
		require.ErrorContains(t, err, c.want, from)
	}
	_, err := ReadCompiled(strings.NewReader("{"))
	require.Error(t, err)
}

// goldenCase is a step with its seconds.
type goldenCase struct {
	Shape     [3]int       `json:"shape"` // ranks, expert group, attention group
	Loads     []goldenLoad `json:"loads"`
	Imbalance float64      `json:"imbalance"`
	Seconds   float64      `json:"seconds"`
}

type goldenLoad struct {
	Decode  int      `json:"decode"`
	Context int      `json:"context"`
	Chunks  [][2]int `json:"chunks"` // from, to
}

// Go and C++ must give the same seconds for the same table.
func TestGoldenPace(t *testing.T) {
	c := compile(t, "Qwen3-30B-A3B", "vllm", "power_law_1.2", 3)
	for i := range c.Attention { // short grids: both readers extrapolate
		g := &c.Attention[i]
		g.Generation = g.Generation[:17]
		for j := range g.Generation {
			g.Generation[j] = g.Generation[j][:41]
		}
	}
	c = again(t, c)
	r := rand.New(rand.NewPCG(3, 4))
	var cases []goldenCase
	for i := range c.Shapes {
		st, err := c.Step(c.Shapes[i].Shape())
		require.NoError(t, err)
		for n := range 12 {
			one := goldenCase{Shape: [3]int{st.shape.Ranks, st.shape.ExpertGroup, st.shape.AttentionGroup}, Imbalance: 1 + r.Float64()*float64(n%2)}
			var loads []Load
			for _, l := range drawn(r, st) {
				drawn := goldenLoad{Decode: l.Decode, Context: l.Context, Chunks: [][2]int{}}
				l.Chunks = 0
				for left := l.Prefill; left > 0; {
					from := r.IntN(1 << r.IntN(18))
					k := min(left, 1+r.IntN(4096))
					drawn.Chunks = append(drawn.Chunks, [2]int{from, from + k})
					l.Chunks += st.Chunk(from, from+k)
					left -= k
				}
				loads, one.Loads = append(loads, l), append(one.Loads, drawn)
			}
			one.Seconds = st.Skewed(loads, one.Imbalance)
			cases = append(cases, one)
		}
	}
	want, err := json.Marshal(map[string]any{"table": c, "cases": cases})
	require.NoError(t, err)
	want = append(bytes.ReplaceAll(want, []byte(`},{"shape"`), []byte("},\n{\"shape\"")), '\n')
	if *update {
		require.NoError(t, os.WriteFile(golden, want, 0o600))
	}
	got, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}
