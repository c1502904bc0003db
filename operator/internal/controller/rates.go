package controller

import (
	"tangram.dev/operator/pkg/costmodel"

	api "tangram.dev/api/v1alpha2"
)

// What transitions are assumed to do before one was measured. The assumption counts as one of assumedBytes, so that transitions of a few bytes, whose time is that of
// messages and not of bytes, say little.
const (
	assumedRate  = 1e9 // bytes a second, to a rank
	assumedFlip  = .1  // seconds
	assumedBytes = 64 << 20
)

// ratesOf the transitions between layouts, as the agents measured them: each counts by the bytes that it moved. Staging goes on beside steps, which it slows: a fifth of its
// time is taken to be lost to those who are served.
func ratesOf(transitions []api.LayoutTransition) costmodel.Rates {
	bytes, staging := float64(assumedBytes), assumedBytes/assumedRate
	flips, flipping := 0, 0.
	for i := range transitions {
		t := &transitions[i].Status
		if t.Phase != api.PhaseSucceeded || transitions[i].Spec.Kind == api.KindRepair || transitions[i].Spec.From.Epoch == 0 {
			continue
		}
		moved := float64(t.Bytes.Process+t.Bytes.Node+t.Bytes.TCP+t.Bytes.Comm+t.Bytes.Checkpoint) / float64(max(transitions[i].Spec.To.Ranks, 1))
		stage, flip := t.Phases.Stage.Seconds(), t.Phases.Flip.Seconds()
		if moved <= 0 || stage <= 0 || flip <= 0 || len(t.Flips) == 0 {
			continue
		}
		bytes, staging = bytes+moved, staging+stage
		flips, flipping = flips+len(t.Flips), flipping+flip
	}
	rates := costmodel.Rates{BytesPerSecond: bytes / staging, FlipSeconds: assumedFlip, Hidden: .8}
	if flips > 0 {
		rates.FlipSeconds = flipping / float64(flips)
	}
	return rates
}
