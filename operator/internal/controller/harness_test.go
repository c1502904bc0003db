package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/world"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// How long tests wait for a result, and how often they check.
const (
	wait = 4 * time.Minute // only a deadlock takes this long
	tick = 50 * time.Millisecond
)

// line connects to an agent and looks it up at every call, like a reconnecting connection.
type line struct {
	w       *drivertest.World
	address string
}

func (l *line) Address() string { return l.address }
func (l *line) Close() error    { return nil }

func (l *line) agent() (*drivertest.Agent, error) {
	if a := l.w.Find(l.address); a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("agent %s: connection refused", l.address)
}

func (l *line) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	a, err := l.agent()
	if err != nil {
		return nil, err
	}
	return a.Status(ctx, world)
}

func (l *line) Load(ctx context.Context, world string) (*tangramv1.ExpertLoadResponse, error) {
	a, err := l.agent()
	if err != nil {
		return nil, err
	}
	return a.Load(ctx, world)
}

func (l *line) do(call func(*drivertest.Agent) error) error {
	a, err := l.agent()
	if err != nil {
		return err
	}
	return call(a)
}

func (l *line) Prepare(ctx context.Context, q *tangramv1.PrepareRequest) error {
	return l.do(func(a *drivertest.Agent) error { return a.Prepare(ctx, q) })
}

func (l *line) Stage(ctx context.Context, h *tangramv1.Header) error {
	return l.do(func(a *drivertest.Agent) error { return a.Stage(ctx, h) })
}

func (l *line) Permit(ctx context.Context, h *tangramv1.Header) error {
	return l.do(func(a *drivertest.Agent) error { return a.Permit(ctx, h) })
}

func (l *line) Retire(ctx context.Context, h *tangramv1.Header) error {
	return l.do(func(a *drivertest.Agent) error { return a.Retire(ctx, h) })
}

func (l *line) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	return l.do(func(a *drivertest.Agent) error { return a.Resolve(ctx, h, o, reason, lost...) })
}

func (l *line) Release(ctx context.Context, h *tangramv1.Header, m []string, ends bool, reason string) error {
	return l.do(func(a *drivertest.Agent) error { return a.Release(ctx, h, m, ends, reason) })
}

func (l *line) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	return l.do(func(a *drivertest.Agent) error { return a.Watch(ctx, world, each) })
}

func (l *line) Abort(ctx context.Context, h *tangramv1.Header, reason string) (flipped bool, err error) {
	err = l.do(func(a *drivertest.Agent) error { flipped, err = a.Abort(ctx, h, reason); return err })
	return flipped, err
}

// bed is the environment of one test: its own namespace under restricted Pod Security, a kubelet, an operator.
type bed struct {
	*kubelet
	t       *testing.T
	metrics *Metrics
	worlds  *world.Worlds
	stop    func() // stops the operator
	r       *Reconciler
	calls   interceptor.Funcs // intercept the operator's calls to its cache and the API server; set before operator()
	mayHarm bool              // this test deletes pods of the active layout

	driver       atomic.Pointer[pki.Identity] // for the world that was opened last
	certificates Certificates                 // set before operator()
	keepEnded    time.Duration                // KeepEnded of the Reconciler, set before operator(); 0: 3 s
}

var (
	numbers atomic.Uint32
	scheme  = runtime.NewScheme()
	grant   sync.Once
)

func init() { // only a bug can make a scheme fail
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
}

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Parallel()
	return another(t)
}

// newBedWith returns a bed whose operator's calls the test sees and may delay.
func newBedWith(t *testing.T, calls interceptor.Funcs) *bed {
	t.Helper()
	t.Parallel()
	return bedOf(t, calls, Certificates{})
}

// keeping returns a bed whose operator does not replace pods with an ended container, so reported problems stay.
func keeping(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.keep(time.Hour)
	return b
}

// keep starts another operator, which waits this long for a container that ended.
func (b *bed) keep(so time.Duration) {
	b.t.Helper()
	b.stop()
	b.keepEnded = so
	b.operator()
}

// another returns a further bed for the same test.
func another(t *testing.T) *bed {
	t.Helper()
	return bedOf(t, interceptor.Funcs{}, Certificates{})
}

func bedOf(t *testing.T, calls interceptor.Funcs, certificates Certificates) *bed {
	t.Helper()
	c, err := client.NewWithWatch(cluster, client.Options{Scheme: scheme})
	require.NoError(t, err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("test-%d", numbers.Add(1)),
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	require.NoError(t, c.Create(t.Context(), namespace))
	b := &bed{kubelet: startKubelet(t, c, namespace.Name), t: t, calls: calls, certificates: certificates}
	b.operator()
	t.Cleanup(func() {
		if !b.mayHarm && len(b.early) > 0 {
			t.Errorf("deleted while in the layout in force: %v", b.early)
		}
		if t.Failed() {
			b.dump()
		}
		b.stop()
	})
	return b
}

// rights returns a client configuration with exactly the operator's rights from the chart.
func rights(t *testing.T, c client.Client) *rest.Config {
	t.Helper()
	grant.Do(func() {
		text, err := os.ReadFile(filepath.Join(root(), "charts", "tangram", "files", "role.yaml"))
		require.NoError(t, err)
		role := &rbacv1.ClusterRole{}
		require.NoError(t, yaml.UnmarshalStrict(text, role))
		require.NoError(t, c.Create(t.Context(), role))
		require.NoError(t, c.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "operator"}}}))
	})
	as := rest.CopyConfig(cluster)
	as.Impersonate = rest.ImpersonationConfig{UserName: "operator"}
	return as
}

// operator starts an operator; it may be called again after stop.
func (b *bed) operator() {
	b.t.Helper()
	options, err := ManagerOptions(b.namespace)
	require.NoError(b.t, err)
	options.Metrics = server.Options{BindAddress: "0"}
	options.GracefulShutdownTimeout = ptr.To[time.Duration](-1) // however long it takes on a busy machine
	options.NewClient = func(config *rest.Config, o client.Options) (client.Client, error) {
		c, err := client.NewWithWatch(config, o)
		return interceptor.NewClient(c, b.calls), err
	}
	mgr, err := ctrl.NewManager(rights(b.t, b.c), options)
	require.NoError(b.t, err)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("TANGRAM_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(b.t.Output(), nil))
	}
	worlds := &world.Worlds{Log: log, LookEvery: 200 * time.Millisecond, AnswerWithin: wait}
	b.worlds = worlds
	b.metrics = NewMetrics(prometheus.NewRegistry())
	r := &Reconciler{Log: log, Worlds: worlds, KeepEnded: cmp.Or(b.keepEnded, 3*time.Second), DeleteWithin: time.Hour, OwnNamespace: "tangram-system", Images: Images{Agent: "agent:test", AgentGPU: "agent-gpu:test", Engine: "engine:test", VLLM: "vllm:test", Gateway: "gateway:test", Operator: "operator:test"},
		Certificates: b.certificates,
		Dial: func(d *api.MoEDeployment, i *pki.Identity) world.Dialer {
			b.driver.Store(i)
			return b.dial(d.Name)
		}}
	require.NoError(b.t, r.SetUp(mgr, b.metrics))
	b.r = r
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			b.t.Errorf("operator: %v", err)
		}
	})
	b.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		ending, over := context.WithTimeout(context.Background(), wait)
		defer over()
		worlds.CloseAll(ending)
	})
}

// must panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// deployment returns a deployment of n pods with one rank each.
func (b *bed) deployment(name string, n int32) *api.MoEDeployment {
	return &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.namespace}, Spec: api.MoEDeploymentSpec{
		Replicas:   n,
		Engine:     api.Engine{Name: api.EngineReference},
		Model:      api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "models", Path: "demo"}}},
		Transition: api.Transition{TimeoutSeconds: 86400}, // no timeout because the machine is busy
		Memory:     api.Memory{Weights: resource.MustParse("64Mi"), KVCache: resource.MustParse("16Mi")},
		Tuning:     api.Tuning{SpareBanks: 1, GranuleRows: 8}}}
}

// serve creates a deployment and waits until it is ready.
func (b *bed) serve(name string, n int32) *api.MoEDeployment {
	b.t.Helper()
	d := b.deployment(name, n)
	require.NoError(b.t, b.c.Create(b.t.Context(), d))
	return b.ready(name)
}

func (b *bed) get(name string) *api.MoEDeployment {
	b.t.Helper()
	d := &api.MoEDeployment{}
	require.NoError(b.t, b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, d))
	return d
}

// change patches the spec of world w, as kubectl patch does.
func (b *bed) change(patch string) {
	b.t.Helper()
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: b.namespace}}
	require.NoError(b.t, b.c.Patch(b.t.Context(), d, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

func (b *bed) scale(n int) {
	b.t.Helper()
	b.change(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

// until waits until a deployment is in the expected state.
func (b *bed) until(name, what string, is func(*api.MoEDeployment) bool) *api.MoEDeployment {
	b.t.Helper()
	var d *api.MoEDeployment
	require.Eventually(b.t, func() bool {
		next := &api.MoEDeployment{}
		if b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, next) != nil {
			return false // the last poll of a finished test
		}
		d = next
		return is(d)
	}, wait, tick, what)
	return d
}

// ready waits until a deployment is ready at its current generation.
func (b *bed) ready(name string) *api.MoEDeployment {
	b.t.Helper()
	return b.until(name, "ready", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing) && d.Status.ObservedGeneration == d.Generation && b.recent(d)
	})
}

// has says whether a deployment has a condition of its current generation.
func has(d *api.MoEDeployment, kind string, status metav1.ConditionStatus, reason string) bool {
	c := apimeta.FindStatusCondition(d.Status.Conditions, kind)
	return c != nil && c.Status == status && c.Reason == reason && c.ObservedGeneration == d.Generation
}

func message(d *api.MoEDeployment, kind string) string {
	if c := apimeta.FindStatusCondition(d.Status.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

// degraded waits until a deployment is degraded for a reason, with a message that contains these words.
func (b *bed) degraded(name, reason string, words ...string) *api.MoEDeployment {
	b.t.Helper()
	d := b.until(name, "degraded: "+reason, func(d *api.MoEDeployment) bool {
		if !has(d, api.ConditionDegraded, metav1.ConditionTrue, reason) {
			return false
		}
		for _, w := range words {
			if !strings.Contains(message(d, api.ConditionDegraded), w) {
				return false
			}
		}
		return true
	})
	return d
}

// ranks returns the pods of a world's ranks from the API server.
func (b *bed) ranks(name string) []corev1.Pod {
	b.t.Helper()
	var list corev1.PodList
	require.NoError(b.t, b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace),
		client.MatchingLabels{api.WorldLabel: name, api.ComponentLabel: api.ComponentRank}))
	return list.Items
}

func (b *bed) podNames(name string) []string {
	b.t.Helper()
	out := []string{}
	for _, p := range b.ranks(name) {
		out = append(out, p.Name)
	}
	return out
}

func (b *bed) pod(name string) *corev1.Pod {
	b.t.Helper()
	p := &corev1.Pod{}
	require.NoError(b.t, b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, p))
	return p
}

func (b *bed) gone(o client.Object, name string) bool {
	return apierrors.IsNotFound(b.c.Get(context.Background(), client.ObjectKey{Namespace: b.namespace, Name: name}, o))
}

// history returns the LayoutTransitions of world w.
func (b *bed) history() []api.LayoutTransition {
	b.t.Helper()
	var list api.LayoutTransitionList
	require.NoError(b.t, b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace), client.MatchingLabels{api.WorldLabel: "w"}))
	return list.Items
}

// seen waits until the operator's cache has this or a newer version: the watches of two kinds are not ordered.
func (b *bed) seen(o client.Object) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		have, ok := o.DeepCopyObject().(client.Object)
		return ok && b.r.Get(b.t.Context(), client.ObjectKeyFromObject(o), have) == nil && revision(b.t, have) >= revision(b.t, o)
	}, wait, tick)
}

// recent says whether the status lists the completed LayoutTransitions, which are written first.
func (b *bed) recent(d *api.MoEDeployment) bool {
	var list api.LayoutTransitionList
	if b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace), client.MatchingLabels{api.WorldLabel: d.Name}) != nil {
		return false
	}
	newestFirst(list.Items)
	return !slices.ContainsFunc(list.Items, func(t api.LayoutTransition) bool { return !over(&t) }) &&
		equality.Semantic.DeepEqual(recent(list.Items), d.Status.RecentTransitions)
}

// repairs returns the repairs of world w in its history.
func (b *bed) repairs() []api.LayoutTransition {
	b.t.Helper()
	return slices.DeleteFunc(b.history(), func(t api.LayoutTransition) bool { return t.Spec.Kind != api.KindRepair })
}

// uids returns the UIDs of world w's pods of ranks, by name.
func (b *bed) uids() map[string]types.UID {
	b.t.Helper()
	out := map[string]types.UID{}
	for _, p := range b.ranks("w") {
		out[p.Name] = p.UID
	}
	return out
}

// told waits for an event whose text contains these words.
func (b *bed) told(reason, words string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var list eventsv1.EventList
		require.NoError(b.t, b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace)))
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Note, words) {
				return true
			}
		}
		return false
	}, wait, tick, "event %s with %q", reason, words)
}

// count returns the number of events with a reason.
func (b *bed) count(reason string) int {
	b.t.Helper()
	var list eventsv1.EventList
	require.NoError(b.t, b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace)))
	n := 0
	for _, e := range list.Items {
		if e.Reason == reason {
			n++
			if e.Series != nil {
				n += int(e.Series.Count) - 1
			}
		}
	}
	return n
}

// dump prints the state for the analysis of a failure.
func (b *bed) dump() {
	var all api.MoEDeploymentList
	if err := b.c.List(context.Background(), &all, client.InNamespace(b.namespace)); err == nil {
		for i := range all.Items {
			all.Items[i].ManagedFields = nil
			text, _ := yaml.Marshal(all.Items[i].Status)
			b.t.Logf("%s (generation %d, wanted %d %s):\n%s", all.Items[i].Name, all.Items[i].Generation, all.Items[i].Spec.Replicas, all.Items[i].SpecMode(), text)
		}
	}
	var pods corev1.PodList
	if err := b.c.List(context.Background(), &pods, client.InNamespace(b.namespace)); err == nil {
		for _, p := range pods.Items {
			b.t.Logf("pod %s %s node=%q ip=%q deleting=%v labels=%v", p.Name, p.Status.Phase, p.Spec.NodeName, p.Status.PodIP, p.DeletionTimestamp, p.Labels)
		}
	}
	var events eventsv1.EventList
	if err := b.c.List(context.Background(), &events, client.InNamespace(b.namespace)); err == nil {
		for _, e := range events.Items {
			b.t.Logf("event %s %s: %s", e.Type, e.Reason, e.Note)
		}
	}
}
