package kernels

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
)

func view(t testing.TB, model string) *geometry.View {
	t.Helper()
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if strings.EqualFold(g.Model, model) {
			v, err := geometry.New(g)
			require.NoError(t, err)
			return v
		}
	}
	t.Fatalf("no geometry %q", model)
	return nil
}

func step(t testing.TB, model, engine, routing string, s Shape) *Step {
	t.Helper()
	table, err := Open(model)
	require.NoError(t, err)
	out, err := NewStep(table, view(t, model), engine, routing, s)
	require.NoError(t, err)
	return out
}

// spread distributes requests with this context over the groups of a shape.
func spread(s Shape, requests, context int) []Load {
	loads := make([]Load, s.Groups())
	for i := range requests {
		l := &loads[i%len(loads)]
		l.Decode++
		l.Context += context
	}
	return loads
}

func TestTablesCoverAllShapes(t *testing.T) {
	for _, model := range Models() {
		table, err := Open(model)
		require.NoError(t, err)
		require.Equal(t, []string{"sglang", "trtllm", "vllm"}, table.Engines())
		for _, engine := range table.Engines() {
			for _, routing := range table.Routings() {
				for _, ranks := range []int{1, 2, 4, 8} {
					for _, s := range []Shape{Expert(ranks), Tensor(ranks), {ranks, 1, ranks}, {ranks, ranks, 1}} {
						st := step(t, model, engine, routing, s)
						before := 0.0
						for _, n := range []int{1, 8, 64, 512, 4096} {
							got := st.Seconds(spread(s, n, 2048))
							require.Greater(t, got, before*.9, "%s %s %s %d requests", model, engine, s, n) // kernels change with size: a dip is real
							require.Less(t, got, 10.0)
							before = got
						}
						require.Greater(t, st.Chunk(0, 8192), st.Chunk(0, 4096))
						require.GreaterOrEqual(t, st.Chunk(4096, 8192), st.Chunk(0, 4096), "later tokens look back at more")
					}
				}
			}
		}
	}
}

// The compiled grid returns the points of the table.
func TestGridKeepsMeasuredPoints(t *testing.T) {
	table, err := Open("qwen3-235b-a22b")
	require.NoError(t, err)
	c, err := table.curve(key{opMoE, "vllm", "balanced", 1, 8})
	require.NoError(t, err)
	g := gridOf(c.at)
	for _, p := range c {
		require.InEpsilon(t, p.us, g.at(int(p.x)), .02, "%v tokens", p.x)
	}
	require.Zero(t, g.at(0))
}

func TestBadTables(t *testing.T) {
	head := "op,engine,routing,i,j,x,y,microseconds\n"
	for text, want := range map[string]string{
		head + "moe,e,r,1,1,1,0,NaN\n":                     "line 2",
		head + "moe,e,r,1,1,1,0,-1\n":                      "line 2",
		head + "moe,e,r,1,1,x,0,1\n":                       "no size",
		head + "moe,e,r,1,1,4,0,1\nmoe,e,r,1,1,4,0,2\n":    "there twice",
		head + "moe,e,r,1\n":                               "wrong number of fields",
		head + "generation,,,1,1,1,0,1\n":                  "zero",
		head + "moe,e,r,1,1,1,0,+Inf\nmoe,e,r,1,1,1,0,1\n": "line 2",
		"": "header",
	} {
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
	_, err := Open("gpt-2")
	require.ErrorContains(t, err, "qwen3-235b-a22b")
	table, err := Open("Qwen3-30B-A3B")
	require.NoError(t, err)
	_, err = NewStep(table, view(t, "Qwen3-30B-A3B"), "vllm", "balanced", Shape{8, 3, 1})
	require.ErrorContains(t, err, "divide")
	_, err = NewStep(table, view(t, "Qwen3-30B-A3B"), "vllm", "balanced", Shape{8, 2, 2})
	require.ErrorContains(t, err, "was not measured")
}
