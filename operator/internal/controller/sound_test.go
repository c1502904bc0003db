package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "tangram.dev/api/v1alpha2"
)

// applied returns the number of applies that the operator remembers for a MoEDeployment.
func (b *bed) applied(uid types.UID) int {
	n := 0
	if mine, there := b.r.applied.Load(uid); there {
		mine.(*sync.Map).Range(func(any, any) bool { n++; return true })
	}
	return n
}

// A MoEDeployment that disappears without its finalizer, unseen, leaves no state in the operator.
func TestMoEDeployment_WhenRemovedWithoutFinalizer(t *testing.T) {
	var gone atomic.Bool
	b := newBedWith(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		_, is := o.(*api.MoEDeployment)
		for is && gone.Load() && !apierrors.IsNotFound(c.Get(ctx, key, o, options...)) { // it sees no state in between
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(tick):
			}
		}
		return c.Get(ctx, key, o, options...)
	}})
	b.mayHarm = true
	d := b.serve("w", 2)
	require.NotNil(t, b.worlds.Find(d.UID))
	require.Positive(t, b.applied(d.UID))
	gone.Store(true)
	require.NoError(t, b.c.Delete(t.Context(), d))
	require.NoError(t, b.c.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	require.Eventually(t, func() bool { return b.worlds.Find(d.UID) == nil }, wait, tick, "its world ends")
	require.Eventually(t, func() bool { return b.applied(d.UID) == 0 }, wait, tick)
}

// Deletion also removes the remembered applies of a world.
func TestDeleteForgetsAppliedObjects(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	require.Positive(t, b.applied(d.UID))
	b.deleted("w")
	require.Zero(t, b.applied(d.UID))
}

// A finalizer that another client adds at the same time is kept.
func TestForeignFinalizerIsKept(t *testing.T) {
	var once sync.Once
	var direct client.Client
	b := newBedWith(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		err := c.Get(ctx, key, o, options...)
		if d, is := o.(*api.MoEDeployment); is && err == nil {
			once.Do(func() { // after the operator has read it
				patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/other"]}}`))
				err = direct.Patch(ctx, d.DeepCopy(), patch)
			})
		}
		return err
	}})
	direct = b.c
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 1)))
	require.ElementsMatch(t, []string{"example.com/other", api.Finalizer}, b.ready("w").Finalizers)
}

// While all workers wait for the API server, a broken world is still repaired.
func TestRepairBegins_WhenWorkersBlocked(t *testing.T) {
	var waiting atomic.Int32
	release := make(chan struct{})
	b := newBedWith(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, is := o.(*corev1.Pod); is && strings.HasPrefix(o.GetName(), "slow") {
			waiting.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return c.Create(ctx, o, options...)
	}})
	b.mayHarm = true
	b.serve("w", 3)
	b.let(fate{hold: true}, "w-1", "w-3") // no replacement yet
	for i := range workers {
		require.NoError(t, b.c.Create(t.Context(), b.deployment(fmt.Sprintf("slow%c", 'a'+i), 1)))
	}
	require.Eventually(t, func() bool { return waiting.Load() == workers }, wait, tick, "all workers wait")
	b.world("w").Stop(agentAddress(b.pod("w-1").Status.PodIP))
	require.Eventually(t, func() bool { return len(b.world("w").Layout().GetMembers()) == 2 }, wait, tick, "the survivors go on")
	require.EqualValues(t, workers, waiting.Load(), "they still wait")
	close(release)
}

// No notification is dropped, however many worlds notify while no worker takes them; each world is queued once.
func TestWorldNotificationsAreNotDropped(t *testing.T) {
	all := func() queue {
		return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	}
	r := &Reconciler{}
	require.NoError(t, r.news.open(t.Context(), all()))
	require.NoError(t, r.urgent.open(t.Context(), all()))
	for range 2 {
		for i := range 5000 {
			r.wake(types.NamespacedName{Namespace: "n", Name: fmt.Sprintf("w%d", i)})
		}
	}
	require.Equal(t, 5000, r.news.q.Len())
	require.Equal(t, 5000, r.urgent.q.Len())
}

// A reconcile reads only the objects of its world, not those of the whole namespace.
func TestReconcileListsObjectsByIndex(t *testing.T) {
	var lists, scans sync.Map // by kind
	b := newBedWith(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		lists.Store(fmt.Sprintf("%T", list), true)
		if o := (&client.ListOptions{}).ApplyOptions(options); o.FieldSelector == nil {
			scans.Store(fmt.Sprintf("%T", list), true)
		}
		return c.List(ctx, list, options...)
	}})
	b.serve("w", 2)
	for _, kind := range []client.ObjectList{&corev1.PodList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &api.LayoutTransitionList{}} {
		_, listed := lists.Load(fmt.Sprintf("%T", kind))
		require.True(t, listed, "%T", kind)
		_, scanned := scans.Load(fmt.Sprintf("%T", kind))
		require.False(t, scanned, "%T", kind)
	}
}
