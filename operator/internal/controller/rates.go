package controller

import (
	"tangram.dev/operator/pkg/costmodel"

	api "tangram.dev/api/v1alpha2"
)

// Assumed rates before a transition was measured. The assumption counts like a transition of assumedBytes. So
// transitions of a few bytes, whose time goes to messages, hardly change the estimate.
const (
	assumedRate  = 1e9 // bytes a second, to a rank
	assumedFlip  = .1  // seconds
	assumedBytes = 64 << 20
)

// ratesOf returns the rates of measured transitions between layouts, weighted by the bytes that they moved. Staging
// runs during steps and slows them: a fifth of its time is counted as lost to serving.
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
