package budget

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// plain: a rank has 1000 blocks, and each redundant expert per rank takes 60 of them.
func plain() Input {
	return Input{Curve: []Point{{0, .6}, {8, .8}, {16, .9}, {32, .95}}, Ranks: 8, Layers: 6, ExpertBytes: 10 << 20, BlockBytes: 1 << 20,
		KVBlocks: 1000, LossPerBlock: .001, MoESeconds: .010, OtherSeconds: .010}
}

func TestChoose(t *testing.T) {
	in := plain()
	c, err := Choose(in)
	require.NoError(t, err)
	require.Equal(t, 32, c.Best, "without pressure the best balance")
	require.Equal(t, Row{Redundant: 8, Balance: .8, KVBlocks: 940, StepSeconds: .010 + .010/.8, Throughput: (.010 + .010/.6) / (.010 + .010/.8)}, c.Rows[1])

	in.KVDemand = 900 // 880 left with 16, 760 with 32: 1-.020 over .02111 against 1-.140 over .02053
	c, err = Choose(in)
	require.NoError(t, err)
	require.Equal(t, 16, c.Best)
	require.Equal(t, 20, c.Rows[2].KVShort)
	require.Contains(t, c.Why, "16 redundant experts per layer: balancedness 0.900 (0.600 without)")
	require.Contains(t, c.Why, "with 32, 140 KV blocks would be missing")
	require.Contains(t, c.String(), "16         0.900        880       20   21.111       1.238  <\n")

	in.LossPerBlock, in.KVDemand = .005, 1050
	c, err = Choose(in)
	require.NoError(t, err)
	require.Equal(t, 0, c.Best, "every block counts")

	in = plain()
	in.Curve[3].Balance = .9
	c, err = Choose(in)
	require.NoError(t, err)
	require.Equal(t, 16, c.Best, "of equals the fewest")
	require.Contains(t, c.Why, "32 would not improve it")

	in.KVBlocks = 100 // one redundant expert per rank fits, two do not
	c, err = Choose(in)
	require.NoError(t, err)
	require.Equal(t, 8, c.Best)
	require.Zero(t, c.Rows[2].Throughput)
	require.Contains(t, c.Why, "16 would leave no KV blocks")
}

// For random inputs, the choice has the highest throughput of the model, and higher pressure never requires more
// redundant experts.
func TestChooseAddsNoExpertsUnderMorePressure(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	for range 500 {
		in := Input{Ranks: 1 + random.IntN(40), Layers: 1 + random.IntN(60), ExpertBytes: 1 + random.Int64N(1<<26), BlockBytes: 1 + random.Int64N(1<<22),
			KVBlocks: 1 + random.IntN(1<<16), LossPerBlock: random.Float64() / 1e4, MoESeconds: random.Float64(), OtherSeconds: .01}
		balance := .2
		for r := 0; len(in.Curve) < 8; r += 1 + random.IntN(40) {
			in.Curve = append(in.Curve, Point{r, balance})
			balance += (1 - balance) * random.Float64()
		}
		before := math.MaxInt
		for demand := 0; demand < 2*in.KVBlocks; demand += 1 + in.KVBlocks/7 {
			in.KVDemand = demand
			c, err := Choose(in)
			if err != nil {
				require.ErrorContains(t, err, "no throughput remains")
				break
			}
			score := func(p Point) float64 {
				blocks := float64(in.KVBlocks) - math.Ceil(math.Ceil(float64(p.Redundant)/float64(in.Ranks))*float64(in.Layers)*float64(in.ExpertBytes)/float64(in.BlockBytes))
				if blocks <= 0 {
					return 0
				}
				return math.Max(0, 1-in.LossPerBlock*math.Max(0, float64(demand)-blocks)) / (in.OtherSeconds + in.MoESeconds/p.Balance)
			}
			best, chosen := 0.0, 0.0
			for _, p := range in.Curve {
				best = max(best, score(p))
				if p.Redundant == c.Best {
					chosen = score(p)
				}
			}
			require.InEpsilon(t, best, chosen, 1e-12)
			require.LessOrEqual(t, c.Best, before)
			before = c.Best
		}
	}
}

func TestChooseRejectsInvalidInput(t *testing.T) {
	for want, change := range map[string]func(*Input){
		"the curve has 0 points":                            func(in *Input) { in.Curve = nil },
		"want a first point with 0 redundant":               func(in *Input) { in.Curve = in.Curve[1:] },
		"point 2 (16 redundant experts): balance NaN":       func(in *Input) { in.Curve[2].Balance = math.NaN() },
		"point 1 (8 redundant experts): balance 1.1":        func(in *Input) { in.Curve[1].Balance = 1.1 },
		"point 2: 8 redundant experts after 8":              func(in *Input) { in.Curve[2].Redundant = 8 },
		"ranks is 0":                                        func(in *Input) { in.Ranks = 0 },
		"block bytes is 0":                                  func(in *Input) { in.BlockBytes = 0 },
		"KV demand is -1":                                   func(in *Input) { in.KVDemand = -1 },
		"loss per block is NaN":                             func(in *Input) { in.LossPerBlock = math.NaN() },
		"MoE seconds is +Inf":                               func(in *Input) { in.MoESeconds = math.Inf(1) },
		"the step duration is 0 seconds":                    func(in *Input) { in.MoESeconds, in.OtherSeconds = 0, 0 },
		"2000 of 3000 needed KV blocks are missing, and at": func(in *Input) { in.KVDemand = 3000 },
	} {
		in := plain()
		change(&in)
		_, err := Choose(in)
		require.ErrorContains(t, err, want)
	}
}
