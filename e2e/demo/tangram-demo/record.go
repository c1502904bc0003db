package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/kube"
)

// recordSince returns the record of the newest transition that is not in `before`. Further new ones (failed attempts)
// count as its retries.
func recordSince(ctx context.Context, k *kube.Client, before []v1alpha2.LayoutTransition) (*harness.Record, error) {
	// The transition's status may be written a little later than the condition, because they are two objects.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		all, err := k.Transitions(ctx, world)
		if err != nil {
			return nil, err
		}
		fresh := slices.DeleteFunc(all, func(t v1alpha2.LayoutTransition) bool {
			return slices.ContainsFunc(before, func(b v1alpha2.LayoutTransition) bool { return b.UID == t.UID })
		})
		if n := len(fresh); n > 0 && fresh[n-1].Status.CompletionTime != nil {
			for _, earlier := range fresh[:n-1] {
				say("%s %s: %s", earlier.Name, earlier.Status.Phase, earlier.Status.Message)
			}
			record, err := newRecord(&fresh[n-1])
			if err != nil {
				return nil, err
			}
			record.Retries += n - 1
			return record, nil
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("the world is Ready, but no LayoutTransition of it ended (%d are new): %w", len(fresh), err)
		}
	}
}

// newRecord converts a successful transition to the form of the driver's record.
func newRecord(t *v1alpha2.LayoutTransition) (*harness.Record, error) {
	s := t.Status
	if s.Phase != v1alpha2.PhaseSucceeded || s.StartTime == nil || s.CompletionTime == nil {
		return nil, fmt.Errorf("LayoutTransition %s is %s (%s), not Succeeded with its times", t.Name, s.Phase, strings.TrimSpace(s.Message))
	}
	var peak v1alpha2.PeakMemory
	if s.PeakMemory != nil {
		peak = *s.PeakMemory
	}
	var kv v1alpha2.KVLoad
	if s.KVLoad != nil {
		kv = *s.KVLoad
	}
	return &harness.Record{
		FromEpoch: uint64(t.Spec.From.Epoch), Epoch: uint64(s.Epoch), TargetHash: t.Spec.To.LayoutHash, PlanHash: t.Spec.PlanHash,
		ExpertBytes: uint64(t.Spec.ExpertBytes), ExpertBoundBytes: uint64(t.Spec.ExpertBytesLowerBound), DenseBytes: uint64(t.Spec.DenseBytes),
		LocalBytes: uint64(s.Bytes.Process), CheckpointBytes: uint64(s.Bytes.Checkpoint),
		Bytes: harness.Bytes{Local: uint64(s.Bytes.Process), Shared: uint64(s.Bytes.Node), TCP: uint64(s.Bytes.TCP), Wire: uint64(s.Bytes.Comm),
			Checkpoint: uint64(s.Bytes.Checkpoint), KV: uint64(s.Bytes.KV), KVAhead: uint64(s.Bytes.KVAhead)},
		Seconds: harness.Seconds{Plan: s.Phases.Plan.Seconds(), Prepare: s.Phases.Prepare.Seconds(), Stage: s.Phases.Stage.Seconds(),
			Flip: s.Phases.Flip.Seconds(), Retire: s.Phases.Retire.Seconds()},
		TotalSeconds: s.CompletionTime.Sub(s.StartTime.Time).Seconds(), Retries: int(s.Retries), PlannedFlips: int(t.Spec.Flips),
		PeakBytes: uint64(peak.MeasuredBytes), PlannedPeakBytes: uint64(peak.PlannedBytes),
		KVMaxTokens: uint64(kv.MaxTokens), KVMeanTokens: uint64(kv.MeanTokens),
		Started: s.StartTime.Time, Ended: s.CompletionTime.Time,
	}, nil
}
