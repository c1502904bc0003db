package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha2"
)

const (
	// feltAround is how long before and after a transition clients' latency is measured.
	feltAround = 10 * time.Second
	// feltWithin is when a record must be written: readings are kept for five minutes and then lost.
	feltWithin = 4 * time.Minute
	// feltAgain is the time between retries: readings come once a second.
	feltAgain = time.Second
)

// feel records the impact of completed transitions on clients, and returns when to check again; 0: not needed.
func (r *Reconciler) feel(ctx context.Context, all []api.LayoutTransition, reader *readings.Reader) (again time.Duration, err error) {
	if reader == nil {
		return 0, nil
	}
	for i := range all {
		t := &all[i]
		s := &t.Status
		if s.Phase != api.PhaseSucceeded || s.ClientImpact != nil || s.StartTime == nil || s.CompletionTime == nil || time.Since(s.CompletionTime.Time) > feltWithin {
			continue
		}
		if left := time.Until(s.CompletionTime.Add(feltAround + feltAgain)); left > 0 {
			again = sooner(again, left)
			continue
		}
		felt, err := feltOf(reader.Between, s.StartTime.Time, s.CompletionTime.Time)
		if errors.Is(err, telemetry.ErrNotKept) {
			continue
		}
		if err != nil { // not measured yet
			again = sooner(again, feltAgain)
			continue
		}
		before := t.DeepCopy()
		s.ClientImpact = felt
		// With a lock: the cached object may be older.
		err = r.Status().Patch(ctx, t, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("client latency of %s: %w", t.Name, err)
		}
	}
	return again, nil
}

// feltOf computes the impact of a transition from the gateways' readings around and between two times.
func feltOf(between func(from, to time.Time) (*telemetry.Window, error), start, end time.Time) (*api.ClientImpact, error) {
	before, err := between(start.Add(-feltAround), start)
	if errors.Is(err, telemetry.ErrNotKept) { // gateways have not been queried for this long yet
		before, err = &telemetry.Window{Seconds: 1}, nil
	}
	if err != nil {
		return nil, err
	}
	during, err := between(start, end)
	if err != nil {
		return nil, err
	}
	after, err := between(end, end.Add(feltAround))
	if err != nil {
		return nil, err
	}
	perSecond := func(w *telemetry.Window) int64 { return int64(w.TokensPerSecond() + .5) }
	seconds := func(s float64) metav1.Duration {
		return metav1.Duration{Duration: time.Duration(s * float64(time.Second)).Round(time.Millisecond)}
	}
	return &api.ClientImpact{TokensPerSecondBefore: perSecond(before), TokensPerSecondDuring: perSecond(during), TokensPerSecondAfter: perSecond(after),
		LongestGap: seconds(during.LongestGap), LongestGapBefore: seconds(before.LongestGap), Silence: seconds(during.Silence)}, nil
}
