package cluster

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	name   = "demo" // of every world in these tests
	object = "moedeployment/" + name
	limit  = 10 * time.Minute // of every wait: only a hang takes this long
)

// left has the namespaces of completed tests; their removal takes a while.
var left struct {
	sync.Mutex
	namespaces []string
}

// namespace makes a namespace for a test, with the volume and the claim of checkpoints; its deletion begins with the
// test's end. If the test fails, it prints the state that explains the failure.
func namespace(t *testing.T, suffix string) *kube.Client {
	t.Helper()
	ns := strings.ToLower(t.Name()) + suffix
	require.NoError(t, up.Namespace(t.Context(), ns))
	t.Cleanup(func() {
		ctx := context.Background() // the test's context has ended
		if t.Failed() {
			t.Log(up.Diagnose(ctx, ns))
		}
		left.Lock()
		left.namespaces = append(left.namespaces, ns)
		left.Unlock()
		require.NoError(t, up.DeleteNamespace(ctx, ns))
	})
	k := up.Kube.In(ns)
	k.Said = func(line string) { t.Log(time.Now().Format("15:04:05"), line) }
	require.NoError(t, k.ApplyFile(t.Context(), filepath.Join(root, "e2e/demo/manifests/10-models.yaml")))
	return k
}

// manifest returns the demo's world, modified by `change`.
func manifest(replicas int32, change func(*v1alpha2.MoEDeploymentSpec)) *v1alpha2.MoEDeployment {
	d := &v1alpha2.MoEDeployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha2.GroupVersion.String(), Kind: "MoEDeployment"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha2.MoEDeploymentSpec{
			Replicas: replicas, RanksPerPod: 1,
			Model: v1alpha2.Model{Source: v1alpha2.ModelSource{
				PersistentVolumeClaim: &v1alpha2.ClaimSource{ClaimName: cluster.ModelsClaim, Path: "demo"}}},
			// No process hangs in these tests: only a closed connection means death, however slow the machine is.
			Engine: v1alpha2.Engine{Name: v1alpha2.EngineReference, Args: []string{"--max-batch-tokens", "24", "--max-model-len", "512",
				"--max-peer-timeout-ms", "60000", "--min-peer-timeout-ms", "60000"}},
			Template: v1alpha2.PodTemplate{Spec: v1alpha2.PodTemplateSpec{TerminationGracePeriodSeconds: ptr.To[int64](60)}},
			Gateway: v1alpha2.Gateway{Replicas: 1, Service: v1alpha2.GatewayService{Type: corev1.ServiceTypeNodePort}, Text: &v1alpha2.Text{Tokenizer: v1alpha2.TokenizerBytes},
				Template: v1alpha2.PodTemplate{Spec: v1alpha2.PodTemplateSpec{TerminationGracePeriodSeconds: ptr.To[int64](30)}}},
			Transition: v1alpha2.Transition{Strategy: v1alpha2.StrategySmooth, TimeoutSeconds: 60},
			Memory:     v1alpha2.Memory{Weights: resource.MustParse("512Mi"), KVCache: resource.MustParse("64Mi")},
			Tuning:     v1alpha2.Tuning{GranuleRows: 16, SpareBanks: 3, HistoryLimit: 10},
		}}
	if change != nil {
		change(&d.Spec)
	}
	return d
}

// serve applies a world and waits until it is Ready.
func serve(t *testing.T, k *kube.Client, replicas int32, change func(*v1alpha2.MoEDeploymentSpec)) {
	t.Helper()
	require.NoError(t, k.Apply(t.Context(), manifest(replicas, change)))
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
}

func deployment(t *testing.T, k *kube.Client) *v1alpha2.MoEDeployment {
	t.Helper()
	d, err := k.MoEDeployment(t.Context(), name)
	require.NoError(t, err)
	return d
}

func ranks(t *testing.T, k *kube.Client) []corev1.Pod {
	t.Helper()
	pods, err := k.Pods(t.Context(), kube.RankSelector(name))
	require.NoError(t, err)
	return pods
}

func names(pods []corev1.Pod) []string {
	all := make([]string, len(pods))
	for i, p := range pods {
		all[i] = p.Name
	}
	return all
}

// eventually waits for a state without a condition; look returns the observed state, for the error.
func eventually(t *testing.T, what string, look func() (ok bool, saw string)) {
	t.Helper()
	var saw string
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		var ok bool
		if ok, saw = look(); ok {
			return
		}
	}
	require.FailNow(t, "never: "+what, "last seen: %s", saw)
}

// requireCondition waits for the condition with this reason (empty: any), and a message with these words.
func requireCondition(t *testing.T, k *kube.Client, kind, status, reason string, words ...string) {
	t.Helper()
	eventually(t, kind+"="+status+", "+reason, func() (bool, string) {
		c := meta.FindStatusCondition(deployment(t, k).Status.Conditions, kind)
		if c == nil {
			return false, "no condition " + kind
		}
		missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Message, w) })
		return string(c.Status) == status && (reason == "" || c.Reason == reason) && !missing, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	})
}

// requireAtRest requires that the objects of a Ready world are consistent.
func requireAtRest(t *testing.T, k *kube.Client, want ...string) *v1alpha2.MoEDeployment {
	t.Helper()
	d, pods := deployment(t, k), ranks(t, k)
	require.Equal(t, want, names(pods))
	s := d.Status
	require.Equal(t, d.Generation, s.ObservedGeneration)
	require.EqualValues(t, len(want), s.Ranks)
	require.EqualValues(t, len(want), s.ReadyReplicas)
	require.Equal(t, d.SpecMode(), s.Mode)
	require.Nil(t, s.Transition)

	// The scale subresource's replicas are the pods that its selector matches.
	selected, err := k.Pods(t.Context(), s.Selector)
	require.NoError(t, err)
	require.Equal(t, want, names(selected))
	require.EqualValues(t, len(selected), s.Replicas)

	require.Len(t, s.Members, len(want))
	byName := map[string]corev1.Pod{}
	for _, p := range pods {
		byName[p.Name] = p
		require.Equal(t, "true", p.Labels[v1alpha2.MemberLabel], p.Name)
	}
	for i, m := range s.Members {
		require.EqualValues(t, i, m.Rank)
		pod, known := byName[m.Pod]
		require.True(t, known, "member %s is on pod %s, which is not there", m.ID, m.Pod)
		require.Contains(t, m.ID, string(pod.UID))
		require.Equal(t, pod.Spec.NodeName, m.Node)
		delete(byName, m.Pod)
	}
	require.Empty(t, byName, "pods without a member")
	return d
}

func client(t *testing.T, k *kube.Client) *load.Client {
	t.Helper()
	url, err := k.AwaitGateway(t.Context(), name)
	require.NoError(t, err)
	return &load.Client{URL: url, Model: name, HTTP: &http.Client{}, Counters: &load.Counters{}}
}

func newTrace(t *testing.T) *load.Trace {
	t.Helper()
	trace, err := load.NewTrace(7, 20*time.Second)
	require.NoError(t, err)
	return trace
}

// underLoad runs `what` while requests stream, and returns their results; none is lost.
func underLoad(t *testing.T, k *kube.Client, what func()) []*load.Result {
	t.Helper()
	return play(t, k, newTrace(t), what)
}

// play sends a trace's requests while `what` runs.
func play(t *testing.T, k *kube.Client, trace *load.Trace, what func()) []*load.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, stop, played := client(t, k), make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- c.Play(ctx, trace, 4, stop) }()
	eventually(t, "tokens stream", func() (bool, string) {
		now := c.Counters.Now()
		return now.Tokens > 0, fmt.Sprintf("%+v", now)
	})
	what()
	close(stop)
	select {
	case results := <-played:
		require.NotEmpty(t, results)
		for _, r := range results {
			require.NoError(t, r.Err, "request %d was lost", r.Request.Index)
		}
		return results
	case <-time.After(limit):
		require.FailNow(t, "requests never ended", "%+v", c.Counters.Now())
		return nil
	}
}
