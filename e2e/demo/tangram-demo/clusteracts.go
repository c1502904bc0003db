package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
)

const (
	look             = 50 * time.Millisecond
	waitAct          = 2 * time.Minute
	operatorSelector = "app.kubernetes.io/name=tangram-operator"
)

// actsOnCluster kills processes with -9; only the operator reacts.
func actsOnCluster(ctx context.Context, o options, k *kube.Client, begin func(string)) ([]*act, error) {
	var out []*act
	for _, play := range []func(context.Context, options, *kube.Client, func(string)) (*act, error){rankDiesOnCluster, operatorDiesOnCluster} {
		if err := sleep(ctx, o.pause); err != nil {
			return nil, err
		}
		limited, cancel := context.WithTimeout(ctx, waitAct)
		a, err := play(limited, o, k, begin)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.Name, err)
		}
		say("%s", a.outcome())
		out = append(out, a)
	}
	return out, nil
}

// dieOnCluster kills a process of the first pod of ranks, and waits until the world is repaired and matches its spec.
func dieOnCluster(ctx context.Context, o options, k *kube.Client, begin func(string), name string, kill func(*corev1.Pod) (int, error)) (*act, error) {
	a := &act{Name: name}
	begin(a.Name)
	pods, err := k.Pods(ctx, kube.RankSelector(world))
	if err != nil || len(pods) == 0 {
		return a, fmt.Errorf("pods of ranks: %d, %w", len(pods), err)
	}
	before, err := k.Transitions(ctx, world)
	if err != nil {
		return a, err
	}
	a.at = time.Now()
	killed, err := kill(&pods[0])
	if err != nil {
		return a, err
	}
	k.Said(fmt.Sprintf("kill -9 of the %d processes of pod %s", killed, pods[0].Name))
	repair, err := awaitTransition(ctx, k, before, func(t *v1alpha2.LayoutTransition) bool {
		return t.Spec.Kind == v1alpha2.KindRepair && t.Status.Phase == v1alpha2.PhaseSucceeded
	})
	if err != nil {
		return a, fmt.Errorf("a repair: %w", err)
	}
	a.ReadAgain = uint64(repair.Status.Bytes.Checkpoint)
	if err := awaitWorld(ctx, k, o.ranks, v1alpha2.ModeExpert); err != nil {
		return a, err
	}
	a.ended(repair.Status.CompletionTime.Time)
	return a, nil
}

// engineDiesOnCluster kills the process of one vLLM engine. Its agent, which has weights and KV, and the process that
// forked the engine keep running.
func engineDiesOnCluster(ctx context.Context, o options, k *kube.Client, begin func(string)) (*act, error) {
	return dieOnCluster(ctx, o, k, begin, "kill -9 of an engine", func(pod *corev1.Pod) (int, error) {
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == "engine-0" {
				return cluster.KillForked(string(pod.UID), c.ContainerID)
			}
		}
		return 0, fmt.Errorf("pod %s has no container engine-0", pod.Name)
	})
}

func rankDiesOnCluster(ctx context.Context, o options, k *kube.Client, begin func(string)) (*act, error) {
	return dieOnCluster(ctx, o, k, begin, rankActName, func(pod *corev1.Pod) (int, error) { return cluster.KillContainers(string(pod.UID)) })
}

func operatorDiesOnCluster(ctx context.Context, o options, k *kube.Client, begin func(string)) (*act, error) {
	a := &act{Name: operatorActName}
	begin(a.Name)
	pods, err := k.In(cluster.SystemNamespace).Pods(ctx, operatorSelector)
	if err != nil || len(pods) == 0 {
		return a, fmt.Errorf("pods of the operator: %d, %w", len(pods), err)
	}
	before, err := k.Transitions(ctx, world)
	if err != nil {
		return a, err
	}
	if err := k.Patch(ctx, object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`); err != nil {
		return a, err
	}
	// The transition is in progress as soon as its object exists.
	if _, err := awaitTransition(ctx, k, before, func(t *v1alpha2.LayoutTransition) bool {
		return t.Status.CompletionTime == nil && t.Status.Phase != ""
	}); err != nil {
		return a, fmt.Errorf("a switch to kill the operator in: %w", err)
	}
	a.at = time.Now()
	killed, err := cluster.KillContainers(string(pods[0].UID))
	if err != nil {
		return a, err
	}
	k.Said(fmt.Sprintf("kill -9 of the %d processes of pod %s", killed, pods[0].Name))
	if err := awaitWorld(ctx, k, o.ranks, v1alpha2.ModeTensor); err != nil {
		return a, err
	}
	a.ended(time.Time{})
	return a, nil
}

// awaitTransition waits for a new transition of the world that satisfies `is`.
func awaitTransition(ctx context.Context, k *kube.Client, before []v1alpha2.LayoutTransition, is func(*v1alpha2.LayoutTransition) bool) (*v1alpha2.LayoutTransition, error) {
	for {
		all, err := k.Transitions(ctx, world)
		if err != nil {
			return nil, err
		}
		for i := range all {
			old := slices.ContainsFunc(before, func(b v1alpha2.LayoutTransition) bool { return b.UID == all[i].UID })
			if !old && is(&all[i]) {
				return &all[i], nil
			}
		}
		if err := sleep(ctx, look); err != nil {
			return nil, fmt.Errorf("none came: %w", err)
		}
	}
}

// awaitWorld waits until the active layout has this number of ranks and mode, and the world is healthy.
func awaitWorld(ctx context.Context, k *kube.Client, ranks int, mode v1alpha2.Mode) error {
	for {
		d, err := k.MoEDeployment(ctx, world)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(d.Status.Conditions, v1alpha2.ConditionReady)
		if int(d.Status.Ranks) == ranks && d.Status.Mode == mode && ready != nil && ready.Status == "True" && ready.ObservedGeneration == d.Generation {
			return nil
		}
		if err := sleep(ctx, look); err != nil {
			return fmt.Errorf("the world has %d ranks, mode %s, Ready %+v: %w", d.Status.Ranks, d.Status.Mode, ready, err)
		}
	}
}
