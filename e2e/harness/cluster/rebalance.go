package cluster

import (
	"context"
	"fmt"
	"time"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
)

const (
	// follow requests replicas of hot experts, two on each of four ranks, and a check every %d seconds.
	follow = `{"spec":{"experts":{"redundant":{"count":8},"rebalance":{"mode":"Apply","intervalSeconds":%d}}}}`
	// stay stops the rebalance: the experts stay in place, so a later death happens with replicas present.
	stay = `{"spec":{"experts":null}}`
	look = 50 * time.Millisecond

	// RebalanceInterval suits a world whose steps are as fast as two cores allow.
	RebalanceInterval = 3 * time.Second
)

// Rebalance waits until the operator has moved experts of a world whose prompts need the same few experts, and has
// measured the gain. interval, in whole seconds: the operator decides and measures on the tokens of one. why: its
// message about the decision, also with an error.
func Rebalance(ctx context.Context, k *kube.Client, deployment string, interval time.Duration) (done *v1alpha2.CompletedRebalance, why string, err error) {
	object := "moedeployment/" + deployment
	if err := k.Patch(ctx, object, fmt.Sprintf(follow, int(interval.Seconds()))); err != nil {
		return nil, "", err
	}
	for done == nil || done.MeasuredPermille == nil {
		d, err := k.MoEDeployment(ctx, deployment)
		if err != nil {
			return nil, why, err
		}
		if r := d.Status.Rebalance; r != nil {
			done = r.Last
			if done == nil || why == "" {
				why = r.Message
			}
		}
		select {
		case <-ctx.Done():
			return nil, why, fmt.Errorf("no rebalance was done and measured; the last decision: %s: %w", why, ctx.Err())
		case <-time.After(look):
		}
	}
	return done, why, k.Patch(ctx, object, stay)
}
