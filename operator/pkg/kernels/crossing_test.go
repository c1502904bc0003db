package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The parts add up to the whole step, for any number of requests. Below a crossing one shape is shorter, above it the
// other.
func TestCross(t *testing.T) {
	const context, most = 8192, 512
	crossed := 0
	for _, model := range Models() {
		for _, engine := range []string{"vllm", "trtllm", "sglang"} {
			for _, routing := range []string{"balanced", "power_law_1.2"} {
				tensor, expert := step(t, model, engine, routing, Tensor(8)), step(t, model, engine, routing, Expert(8))
				for _, n := range []int{1, 7, 8, 9, 100, 512} {
					for _, s := range []*Step{tensor, expert} {
						require.InEpsilon(t, s.Seconds(spread(s.Shape(), n, context)), s.Decode(n, context).Sum(), 1e-12)
					}
				}
				c := Cross(tensor, expert, context, most)
				shorter := func(n int) bool {
					return tensor.Seconds(spread(tensor.Shape(), n, context)) <= expert.Seconds(spread(expert.Shape(), n, context))
				}
				for n := 1; n <= most; n++ {
					switch {
					case n <= c.Below:
						require.True(t, shorter(n), "%s %s %s: %d", model, engine, routing, n)
					case c.Above > 0 && n >= c.Above:
						require.False(t, shorter(n), "%s %s %s: %d", model, engine, routing, n)
					}
				}
				require.False(t, c.Below < most && shorter(c.Below+1))
				require.False(t, c.Above > 1 && c.Above > c.Below+1 && !shorter(c.Above-1))
				if c.Above > 0 {
					crossed++
				}
			}
		}
	}
	require.Positive(t, crossed, "nothing was tested")
	same := step(t, "Qwen3-30B-A3B", "vllm", "balanced", Expert(8))
	require.Equal(t, Crossing{Below: 9}, Cross(same, same, context, 9))
	require.Zero(t, same.Decode(0, context))
}
