package main

import (
	"fmt"
	"strconv"

	"tangram.dev/e2e/harness"
)

func mib(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// mb formats bytes as decimal megabytes, with thousands separators.
func mb[T int | int64 | uint64](bytes T) string {
	tenths := (int64(bytes) + 50_000) / 100_000
	return fmt.Sprintf("%s.%d", thousands(tenths/10), tenths%10)
}

// thousands formats a number with separators, as 26,668.
func thousands[T int | int64](n T) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// milliseconds formats seconds as rounded milliseconds, with thousands separators.
func milliseconds(seconds float64) string { return thousands(int64(seconds*1e3 + .5)) }

// progressOf shows a transition of a local world, redrawn in place on a terminal.
func progressOf(name string) func(harness.Event) {
	var staged harness.Event // of the running flip, at its highest byte count
	return func(e harness.Event) {
		if e.Flip != staged.Flip || e.BytesDone >= staged.BytesDone && e.BytesTotal > 0 {
			staged = e
		}
		terminal.show(fmt.Sprintf("%s%s: flip %d of %d, %-7s %s of %s MB, %s MB/s", prefix(), name, e.Flip, e.Flips, e.Phase,
			mb(staged.BytesDone), mb(staged.BytesTotal), mb(uint64(staged.Rate))))
	}
}

// moved describes in one line the bytes that a transition moved.
func moved(t *transition) string {
	r, kv := t.Record, ""
	if r.Bytes.KV > 0 {
		kv = fmt.Sprintf(" and %s MB of KV cache", mb(r.Bytes.KV))
	}
	return fmt.Sprintf("%s: %s MB of weights (lower bound %s MB)%s moved in %.1f s", t.Name, mb(t.moved()), mb(r.ExpertBoundBytes+r.DenseBytes), kv, r.TotalSeconds)
}
