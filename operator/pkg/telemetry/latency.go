package telemetry

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Cell of similar responses: the buckets of their first token and of the mean time between later ones (One: there were
// none).
type Cell struct {
	First, Between int32
	One            bool
}

// Answers are the responses of a cell.
type Answers struct{ Requests, Tokens uint64 }

// Latencies by cell. First and later tokens are counted together, so that an SLO on both can be evaluated. Merging is
// addition.
type Latencies map[Cell]Answers

// Note counts one response: seconds to its first token, and from there to its last one.
func (l Latencies) Note(first, rest float64, tokens int) {
	c := Cell{First: Bucket(first), One: tokens <= 1}
	if !c.One {
		c.Between = Bucket(rest / float64(tokens-1))
	}
	l.add(c, Answers{1, uint64(max(tokens, 0))})
}

func (l Latencies) add(c Cell, a Answers) {
	was := l[c]
	l[c] = Answers{was.Requests + a.Requests, was.Tokens + a.Tokens}
}

// Merge adds others.
func (l Latencies) Merge(others Latencies) {
	for c, a := range others {
		l.add(c, a)
	}
}

// Proto returns the wire form, in the order of the cells.
func (l Latencies) Proto() []*tangramv1.LatencyCell {
	out := make([]*tangramv1.LatencyCell, 0, len(l))
	for c, a := range l {
		out = append(out, &tangramv1.LatencyCell{First: c.First, Between: c.Between, One: c.One, Requests: a.Requests, Tokens: a.Tokens})
	}
	slices.SortFunc(out, func(a, b *tangramv1.LatencyCell) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Between, b.Between))
	})
	return out
}

// read parses the wire form; the error names an invalid cell.
func read(cells []*tangramv1.LatencyCell) (Latencies, error) {
	out := make(Latencies, len(cells))
	for _, c := range cells {
		inside := func(b int32) bool { return b >= firstBucket && b <= lastBucket }
		if !inside(c.First) || !inside(c.Between) || c.Tokens < c.Requests || c.One && (c.Between != 0 || c.Tokens != c.Requests) {
			return nil, fmt.Errorf("latencies: invalid cell %v", c)
		}
		at := Cell{c.First, c.Between, c.One}
		if _, there := out[at]; there {
			return nil, fmt.Errorf("latencies: duplicate cell %v", at)
		}
		out[at] = Answers{c.Requests, c.Tokens}
	}
	return out, nil
}

// since returns the growth since an earlier count; false if a cell shrank.
func (l Latencies) since(before Latencies) (Latencies, bool) {
	out := Latencies{}
	for c, was := range before {
		if now := l[c]; now.Requests < was.Requests || now.Tokens < was.Tokens {
			return nil, false
		}
	}
	for c, now := range l {
		was := before[c]
		if d := (Answers{now.Requests - was.Requests, now.Tokens - was.Tokens}); d != (Answers{}) {
			out[c] = d
		}
	}
	return out, true
}

// SLO of a response, in seconds; 0: no limit. Share of responses that must meet it.
type SLO struct{ TTFT, TPOT, Share float64 }

// Check that the SLO is valid.
func (s SLO) Check() error {
	for _, v := range []float64{s.TTFT, s.TPOT} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("telemetry: invalid SLO: TTFT %v s, TPOT %v s", s.TTFT, s.TPOT)
		}
	}
	if s.TTFT == 0 && s.TPOT == 0 {
		return fmt.Errorf("telemetry: an SLO needs a TTFT or a TPOT")
	}
	if !(s.Share >= 0 && s.Share <= 1) {
		return fmt.Errorf("telemetry: invalid share of answers %v; the share must be from 0 to 1", s.Share)
	}
	return nil
}

// Attainment of an SLO. Responses in a bucket that contains the limit may be within it or not: the true number is from
// Within to Within + Unsure. A limit that is a bucket's Bound leaves none unsure.
type Attainment struct {
	Answers, Within, Unsure uint64
	Tokens                  uint64 // of the responses that are surely within
}

// Share of the responses within the SLO, with half of the unsure ones; false if there are none.
func (a Attainment) Share() (float64, bool) {
	return (float64(a.Within) + float64(a.Unsure)/2) / float64(a.Answers), a.Answers > 0
}

// Attainment evaluates an SLO.
func (l Latencies) Attainment(s SLO) (a Attainment) {
	for c, n := range l {
		a.Answers += n.Requests
		sure, maybe := within(c.First, s.TTFT)
		if !c.One {
			also, perhaps := within(c.Between, s.TPOT)
			sure, maybe = sure && also, maybe && perhaps
		}
		switch {
		case sure:
			a.Within += n.Requests
			a.Tokens += n.Tokens
		case maybe:
			a.Unsure += n.Requests
		}
	}
	return a
}

// FirstToken returns a quantile of the times to the first token, as a bucket's bound; false if there are none.
func (l Latencies) FirstToken(q float64) (float64, bool) {
	counts := map[int32]uint64{}
	for c, n := range l {
		counts[c.First] += n.Requests
	}
	return quantile(counts, q)
}

// BetweenTokens is the same for the times between tokens, of responses with more than one.
func (l Latencies) BetweenTokens(q float64) (float64, bool) {
	counts := map[int32]uint64{}
	for c, n := range l {
		if !c.One {
			counts[c.Between] += n.Requests
		}
	}
	return quantile(counts, q)
}

func quantile(counts map[int32]uint64, q float64) (float64, bool) {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	if total == 0 || !(q >= 0 && q <= 1) {
		return 0, false
	}
	left := max(1, uint64(math.Ceil(q*float64(total))))
	for _, b := range slices.Sorted(maps.Keys(counts)) {
		if counts[b] >= left {
			return Bound(b), true
		}
		left -= counts[b]
	}
	return 0, false
}
