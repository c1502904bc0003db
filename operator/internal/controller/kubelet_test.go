package controller

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/world"
)

// fate is what a test makes happen to a pod of ranks.
type fate struct {
	unschedulable string // the scheduler's message; empty: the pod is bound
	waiting       *corev1.ContainerStateWaiting
	hold          bool // bound, but not started
	detached      bool // the pod runs, but its engines are not attached
}

// kubelet simulates scheduler and kubelet for the pods of one namespace, with agents of drivertest inside. A deleted
// pod stays until its agent has left the world (its preStop hook) or its grace period has ended.
type kubelet struct {
	t         *testing.T
	c         client.WithWatch
	namespace string

	mu     sync.Mutex
	pods   map[string]*corev1.Pod // by name, last version seen
	worlds map[string]*drivertest.World
	fates  func(pod string) fate
	// early are pods that were deleted while one of their ranks was in the active layout. An operator does that only
	// where a test expects it.
	early map[string]bool

	gatewaysDown atomic.Bool // gateways do not accept requests
	// sizes returns the result of the pod that reads the checkpoint, by its arguments: a message and an exit code.
	sizes atomic.Pointer[func(args []string) (string, int32)]
}

// Pod IPs are never reused in a run.
var addresses atomic.Uint32

func startKubelet(t *testing.T, c client.WithWatch, namespace string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, c: c, namespace: namespace, pods: map[string]*corev1.Pod{}, worlds: map[string]*drivertest.World{}, early: map[string]bool{}, fates: func(string) fate { return fate{} }}
	for i := range 2 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node(i)}}
		require.NoError(t, c.Create(t.Context(), node))
		t.Cleanup(func() { _ = c.Delete(context.Background(), node) })
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { k.run(ctx) })
	t.Cleanup(func() { cancel(); wait.Wait() })
	return k
}

func (k *kubelet) node(i int) string { return fmt.Sprintf("%s-node-%d", k.namespace, i) }

// let sets the fate of the named pods, or of all; others run.
func (k *kubelet) let(f fate, names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fates = func(pod string) fate {
		for _, n := range names {
			if n == pod {
				return f
			}
		}
		return fate{}
	}
}

// world returns the world of a MoEDeployment.
func (k *kubelet) world(name string) *drivertest.World {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.worldLocked(name)
}

func (k *kubelet) worldLocked(name string) *drivertest.World {
	if k.worlds[name] == nil {
		w, err := drivertest.NewWorld(k.namespace + "." + name)
		if err != nil {
			panic(err)
		}
		k.worlds[name] = w
	}
	return k.worlds[name]
}

// agent waits for the agent in a pod.
func (k *kubelet) agent(pod string) *drivertest.Agent {
	k.t.Helper()
	var a *drivertest.Agent
	require.Eventually(k.t, func() bool { a = k.find(pod); return a != nil }, wait, tick, "no agent runs in pod %s", pod)
	return a
}

// find returns the agent in a pod; nil if it does not run.
func (k *kubelet) find(pod string) *drivertest.Agent {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[pod]
	if p == nil || p.Status.PodIP == "" {
		return nil
	}
	return k.worldLocked(worldOf(p)).Find(agentAddress(p.Status.PodIP))
}

func agentAddress(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(portAgent)) }

// dial simulates a connection to an agent's address.
func (k *kubelet) dial(name string) world.Dialer {
	return func(address string) (world.Agent, error) { return &line{k.world(name), address}, nil }
}

func (k *kubelet) run(ctx context.Context) {
	var list corev1.PodList
	watching, err := k.c.Watch(ctx, &list, client.InNamespace(k.namespace)) // all labels: a kubelet does not filter
	if err != nil {
		k.t.Errorf("watch pods: %v", err)
		return
	}
	defer watching.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watching.ResultChan():
			if !open {
				if ctx.Err() == nil {
					k.t.Error("the watch of pods ended")
				}
				return
			}
			k.note(event)
		case <-tick.C:
			if err := k.gateways(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				k.t.Errorf("gateways: %v", err)
			}
		}
		for _, p := range k.known() {
			if err := k.sync(ctx, p); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				k.t.Errorf("kubelet: pod %s: %v", p.Name, err)
			}
		}
	}
}

// gateways makes gateways accept requests as soon as their Deployment exists, unless they are down.
func (k *kubelet) gateways(ctx context.Context) error {
	var list appsv1.DeploymentList
	if err := k.c.List(ctx, &list, client.InNamespace(k.namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		d := &list.Items[i]
		up := int32(1)
		if k.gatewaysDown.Load() {
			up = 0
		}
		if d.Status.AvailableReplicas == up && d.Status.ObservedGeneration > 0 {
			continue
		}
		d.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: up, AvailableReplicas: up, ObservedGeneration: d.Generation}
		if err := k.c.Status().Update(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelet) note(event watch.Event) {
	p, ok := event.Object.(*corev1.Pod)
	if ok && event.Type == watch.Added && p.Spec.Containers[0].Name == containerSize {
		k.size(p)
	}
	if !ok || worldOf(p) == "" || p.Spec.Containers[0].Name != containerAgent {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if event.Type == watch.Deleted {
		k.worldLocked(worldOf(p)).Stop(agentAddress(p.Status.PodIP))
		if here := k.pods[p.Name]; here != nil && here.UID == p.UID {
			delete(k.pods, p.Name)
		}
		return
	}
	k.noteLocked(p)
}

// size ends a pod that reads the checkpoint.
func (k *kubelet) size(p *corev1.Pod) {
	sizes := k.sizes.Load()
	if sizes == nil {
		return
	}
	message, code := (*sizes)(p.Spec.Containers[0].Args)
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerSize, Image: p.Spec.Containers[0].Image,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, FinishedAt: metav1.Now()}}}}
	if err := k.c.Status().Update(context.Background(), p); err != nil && !apierrors.IsNotFound(err) {
		k.t.Errorf("the end of pod %s: %v", p.Name, err)
	}
}

// worldOf returns the controller of a pod; "": it has none.
func worldOf(p *corev1.Pod) string {
	if owner := metav1.GetControllerOf(p); owner != nil {
		return owner.Name
	}
	return ""
}

// noteLocked stores a pod, unless a newer version is known: watch events come late.
func (k *kubelet) noteLocked(p *corev1.Pod) {
	if here := k.pods[p.Name]; here != nil && here.UID == p.UID && revision(k.t, here) > revision(k.t, p) {
		return
	}
	k.pods[p.Name] = p
}

func revision(t *testing.T, o client.Object) uint64 {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Errorf("resourceVersion: %v", err)
	}
	return v
}

func (k *kubelet) known() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*corev1.Pod
	for _, p := range k.pods {
		out = append(out, p.DeepCopy())
	}
	return out
}

// sync takes the next step for a pod.
func (k *kubelet) sync(ctx context.Context, p *corev1.Pod) error {
	k.mu.Lock()
	f := k.fates(p.Name)
	k.mu.Unlock()
	switch {
	case p.DeletionTimestamp != nil:
		return k.end(ctx, p)
	case p.Spec.NodeName == "" && f.unschedulable != "":
		return k.status(ctx, p, corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: f.unschedulable}}})
	case p.Spec.NodeName == "":
		return k.bind(ctx, p)
	case p.Status.Phase != corev1.PodPending:
		k.attach(p, !f.detached)
		return nil
	case f.hold:
		return nil
	case f.waiting != nil:
		return k.status(ctx, p, k.pending(p, f.waiting))
	}
	return k.start(ctx, p, f)
}

// attach attaches or detaches the engines of a running pod.
func (k *kubelet) attach(p *corev1.Pod, attached bool) {
	if a := k.world(worldOf(p)).Find(agentAddress(p.Status.PodIP)); a != nil && attached {
		a.Detach(false)
	}
}

func (k *kubelet) bind(ctx context.Context, p *corev1.Pod) error {
	target := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		Target: corev1.ObjectReference{Kind: "Node", Name: k.node(ordinalOf(p) % 2)}}
	if err := k.c.SubResource("binding").Create(ctx, p, target); err != nil {
		return err
	}
	return k.refresh(ctx, p)
}

// refresh updates the known state of a pod, so that the next round does not repeat a step.
func (k *kubelet) refresh(ctx context.Context, p *corev1.Pod) error {
	fresh := &corev1.Pod{}
	if err := k.c.Get(ctx, client.ObjectKeyFromObject(p), fresh); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if here := k.pods[p.Name]; here != nil && here.UID == fresh.UID {
		k.noteLocked(fresh)
	}
	return nil
}

func (k *kubelet) status(ctx context.Context, p *corev1.Pod, s corev1.PodStatus) error {
	if len(p.Status.Conditions) == len(s.Conditions) && len(s.Conditions) > 0 && p.Status.Conditions[0].Message == s.Conditions[0].Message &&
		len(p.Status.ContainerStatuses) == len(s.ContainerStatuses) && p.Status.Phase == s.Phase {
		return nil // already reported
	}
	p.Status = s
	if err := k.c.Status().Update(ctx, p); err != nil {
		return err
	}
	return k.refresh(ctx, p)
}

func (k *kubelet) pending(p *corev1.Pod, w *corev1.ContainerStateWaiting) corev1.PodStatus {
	s := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: corev1.ContainerState{Waiting: w}})
	}
	return s
}

// start starts a pod whose volumes all exist.
func (k *kubelet) start(ctx context.Context, p *corev1.Pod, f fate) error {
	for _, v := range p.Spec.Volumes {
		var err error
		switch {
		case v.Secret != nil:
			err = k.c.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: v.Secret.SecretName}, &corev1.Secret{})
		case v.ConfigMap != nil:
			err = k.c.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: v.ConfigMap.Name}, &corev1.ConfigMap{})
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	n := addresses.Add(1)
	ip := fmt.Sprintf("10.%d.%d.%d", n>>16&0xff, n>>8&0xff, n&0xff)
	engines := len(p.Spec.Containers) - 1
	w := k.world(worldOf(p))
	agent := w.Start(drivertest.Pod{Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Address: agentAddress(ip), Ranks: engines})
	agent.Detach(f.detached)
	now := metav1.Now()
	s := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: ptr.To(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	if err := k.status(ctx, p, s); err != nil {
		w.Stop(agentAddress(ip)) // the started pod was another or an older one
		return err
	}
	return nil
}

// end removes a deleted pod once its hook allows it.
func (k *kubelet) end(ctx context.Context, p *corev1.Pod) error {
	w := k.world(worldOf(p))
	a := w.Find(agentAddress(p.Status.PodIP))
	if a != nil && a.InWorld() {
		k.mu.Lock()
		k.early[p.Name] = true
		k.mu.Unlock()
		if time.Now().Before(p.DeletionTimestamp.Time) {
			return nil
		}
	}
	w.Stop(agentAddress(p.Status.PodIP))
	return k.c.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
}

// crash ends a container of a running pod, agent or engine; the ranks end with it.
func (k *kubelet) crash(pod, container string, code int32, message string) {
	k.t.Helper()
	require.Eventually(k.t, func() bool {
		p := &corev1.Pod{}
		if k.c.Get(context.Background(), client.ObjectKey{Namespace: k.namespace, Name: pod}, p) != nil {
			return false
		}
		k.world(worldOf(p)).Stop(agentAddress(p.Status.PodIP))
		for i, s := range p.Status.ContainerStatuses {
			if s.Name == container {
				p.Status.ContainerStatuses[i].Ready = false
				p.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error",
					Message: message, FinishedAt: metav1.Now()}}
			}
		}
		return k.c.Status().Update(context.Background(), p) == nil
	}, wait, tick, "crash %s of pod %s", container, pod)
}
