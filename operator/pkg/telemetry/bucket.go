// Package telemetry merges the reports of a world's gateways (proto, gateway.proto) into one picture of its load:
// merged counters, windows, attainment of an SLO. It rejects implausible parts with a reason. Pure: no I/O, no globals,
// no clock but the caller's.
package telemetry

import "math"

// Latencies are counted in the buckets of Prometheus' native histograms of schema 3: bucket b is (2^((b-1)/8), 2^(b/8)]
// seconds, so a bound is 9 % above the previous one. Times below a millisecond are in the first, times above an hour in
// the last.
const (
	perOctave   = 8
	firstBucket = -10 * perOctave
	lastBucket  = 12 * perOctave
)

// Bucket returns the bucket of a number of seconds.
func Bucket(seconds float64) int32 {
	if !(seconds > 0) {
		return firstBucket
	}
	b := max(firstBucket, min(lastBucket, int32(math.Ceil(math.Log2(math.Min(seconds, 1<<13))*perOctave))-1))
	for b < lastBucket && Bound(b) < seconds { // at most once: the logarithm of a bound may be slightly off
		b++
	}
	return b
}

// Bound is the longest time of a bucket, in seconds; the last one is unbounded.
func Bound(b int32) float64 { return math.Exp2(float64(b) / perOctave) }

// within reports whether the times of a bucket are within a limit: all, or possibly some.
func within(b int32, limit float64) (sure, maybe bool) {
	if limit == 0 {
		return true, true
	}
	return b < lastBucket && Bound(b) <= limit, b == firstBucket || Bound(b-1) < limit
}
