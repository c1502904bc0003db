// Package telemetry makes one picture of a world's load out of what its gateways tell (proto, gateway.proto): merged counters,
// windows, attainment of an SLO. What cannot be right is refused with a reason. Pure: no I/O, no globals, no clock but the caller's.
package telemetry

import "math"

// Latencies are counted in the buckets of Prometheus' native histograms of schema 3: bucket b is (2^((b-1)/8), 2^(b/8)] seconds, so
// a bound is 9 % above the one before. Whatever is shorter than a millisecond is in the first, whatever is longer than an hour in
// the last.
const (
	perOctave   = 8
	firstBucket = -10 * perOctave
	lastBucket  = 12 * perOctave
)

// Bucket that so many seconds are counted in.
func Bucket(seconds float64) int32 {
	if !(seconds > 0) {
		return firstBucket
	}
	b := max(firstBucket, min(lastBucket, int32(math.Ceil(math.Log2(math.Min(seconds, 1<<13))*perOctave))-1))
	for b < lastBucket && Bound(b) < seconds { // once, or not: the logarithm of a bound may be a little off
		b++
	}
	return b
}

// Bound is the longest time of a bucket, in seconds; that of the last one is not.
func Bound(b int32) float64 { return math.Exp2(float64(b) / perOctave) }

// within says whether the times of a bucket are: surely, or some may be.
func within(b int32, limit float64) (sure, maybe bool) {
	if limit == 0 {
		return true, true
	}
	return b < lastBucket && Bound(b) <= limit, b == firstBucket || Bound(b-1) < limit
}
