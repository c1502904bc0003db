package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
	"tangram.dev/tests/internal/worlds"
)

const (
	soakFor      = 10 * time.Minute
	soakHostiles = 4
)

// TestSoak resizes, switches, resets and kills a world for ten minutes, with regular and hostile clients. No regular
// request is lost, every token equals that of a single rank, and in the end nothing runs, waits or holds KV.
func TestSoak(t *testing.T) {
	if worlds.IsCI() {
		t.Skip("ten minutes: in make check")
	}
	k := namespace(t, "")
	serve(t, k, 3, func(spec *v1alpha2.MoEDeploymentSpec) {
		spec.Gateway.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
		spec.Engine.Args = append(spec.Engine.Args, "--min-step-ms", "20")
		spec.Transition.TimeoutSeconds = 600
	})
	start := worldCounters(t, k)
	url := client(t, k).URL
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var hostiles sync.WaitGroup
	refused := make([]int, soakHostiles)
	for i := range soakHostiles {
		hostiles.Go(func() { refused[i] = beHostile(ctx, url, i) })
	}

	acts := []struct {
		name string
		do   func(t *testing.T, k *kube.Client)
	}{
		{"4 ranks", func(t *testing.T, k *kube.Client) { require.NoError(t, k.Scale(t.Context(), object, 4)) }},
		{"TensorParallel", func(t *testing.T, k *kube.Client) {
			require.NoError(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`))
		}},
		{"the gateway's connections are reset", func(t *testing.T, k *kube.Client) {
			pods, err := k.Pods(t.Context(), v1alpha2.WorldLabel+"="+name+","+v1alpha2.ComponentLabel+"="+v1alpha2.ComponentGateway)
			require.NoError(t, err)
			for _, p := range pods {
				resetConnections(t, string(p.UID), "tangram-gateway")
			}
		}},
		{"a pod is killed", func(t *testing.T, k *kube.Client) {
			victim := deployment(t, k).Status.Members[1].Pod
			i := slices.IndexFunc(ranks(t, k), func(p corev1.Pod) bool { return p.Name == victim })
			_, err := cluster.KillContainers(string(ranks(t, k)[i].UID))
			require.NoError(t, err)
			awaitMore(t, k, v1alpha2.KindRepair)
		}},
		{"ExpertParallel", func(t *testing.T, k *kube.Client) {
			require.NoError(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"ExpertParallel"}}}`))
		}},
		{"an engine is killed", func(t *testing.T, k *kube.Client) {
			kill(t, string(ranks(t, k)[0].UID), "tangram-engine")
			awaitMore(t, k, v1alpha2.KindRepair)
		}},
		{"3 ranks", func(t *testing.T, k *kube.Client) { require.NoError(t, k.Scale(t.Context(), object, 3)) }},
	}
	rounds := 0
	results := underLoad(t, k, func() {
		for end := time.Now().Add(soakFor); time.Now().Before(end); rounds++ {
			for _, act := range acts {
				t.Logf("%s round %d: %s", time.Now().Format("15:04:05"), rounds, act.name)
				act.do(t, k)
				eventually(t, act.name+", and the world is as wanted", func() (bool, string) {
					d := deployment(t, k)
					s := d.Status
					return s.State == v1alpha2.ReasonServing && s.ObservedGeneration == d.Generation && s.Ranks == d.Spec.Replicas && s.Mode == d.SpecMode() && s.Transition == nil,
						fmt.Sprintf("state %s, width %d, mode %s", s.State, s.Ranks, s.Mode)
				})
			}
		}
	})
	cancel()
	hostiles.Wait()
	t.Logf("%d rounds, %d requests; hostile clients were refused %v times", rounds, len(results), refused)
	for i, n := range refused {
		require.Positive(t, n, "hostile client %d was never refused", i)
	}
	eventually(t, "running, waiting and KV as at the start", func() (bool, string) {
		now := worldCounters(t, k)
		return now == start, fmt.Sprintf("%+v, at the start %+v", now, start)
	})
	requireOneRanksTokens(t, results)
}

// awaitMore waits until another LayoutTransition of a kind has succeeded.
func awaitMore(t *testing.T, k *kube.Client, kind v1alpha2.TransitionKind) {
	t.Helper()
	before := time.Now().Add(-time.Second)
	eventually(t, "a "+string(kind), func() (bool, string) {
		all, err := k.Transitions(t.Context(), name)
		require.NoError(t, err)
		return slices.ContainsFunc(all, func(lt v1alpha2.LayoutTransition) bool {
			return lt.Spec.Kind == kind && lt.Status.Phase == v1alpha2.PhaseSucceeded && lt.Status.CompletionTime != nil && lt.Status.CompletionTime.After(before)
		}), fmt.Sprintf("%d transitions", len(all))
	})
}

// resetConnections resets the connections of a pod's program to engines, like a network that loses its state.
func resetConnections(t *testing.T, uid, program string) {
	t.Helper()
	for _, process := range processesOf(t, uid, program) {
		out, err := exec.CommandContext(t.Context(), "nsenter", "-t", filepath.Base(process), "-n", "ss", "-K", "dport", "=", ":7300").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Positive(t, strings.Count(string(out), "ESTAB"), "no connection was reset: %s", out)
	}
}

// counters of a world return to their initial values after all requests.
type counters struct{ running, waiting, kv float64 }

// worldCounters returns the values that the operator serves to autoscalers.
func worldCounters(t *testing.T, k *kube.Client) (c counters) {
	t.Helper()
	for metric, into := range map[string]*float64{"requests_running": &c.running, "requests_waiting": &c.waiting, "kv_cache_usage_ratio": &c.kv} {
		metric = "tangram_operator_world_" + metric
		path := fmt.Sprintf("/apis/custom.metrics.k8s.io/v1beta2/namespaces/%s/moedeployments.serving.tangram.dev/%s/%s", k.Namespace, name, metric)
		var got struct {
			Items []struct{ Value resource.Quantity }
		}
		eventually(t, metric, func() (bool, string) { // available after the operator has read the gateways
			text, err := k.Run(t.Context(), nil, "get", "--raw", path)
			if err != nil {
				return false, err.Error()
			}
			require.NoError(t, json.Unmarshal([]byte(text), &got), text)
			return len(got.Items) == 1, text
		})
		*into = got.Items[0].Value.AsApproximateFloat64()
	}
	return c
}

// beHostile sends invalid and abusive requests until ctx ends; it returns the number of rejections. Any effect on it is
// right if others are unaffected.
func beHostile(ctx context.Context, url string, seed int) (refused int) {
	many := func(item string, n int) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	bodies := []string{
		`{"prompt":"a","stop_token_ids":[` + many("200", 2_000_000) + `]}`,
		`{"prompt":"a","user":"` + strings.Repeat("u", 4<<20) + `"}`,
		`{"prompt":[` + many(`"a"`, 500_000) + `]}`,
		`{"prompt":"` + strings.Repeat("p", 8<<20) + `"}`,
		`{"prompt":"a","max_tokens":400,"stream":true}`, // then disconnects
		`{"prompt":"a","max_tokens":400}`,               // then disconnects
		strings.Repeat("[", 1<<20),
		`{"prompt":[1,null,2]}`,
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := seed; ctx.Err() == nil; i++ {
		brief, leave := context.WithTimeout(ctx, 500*time.Millisecond)
		if body := bodies[i%len(bodies)]; !strings.Contains(body, `"max_tokens"`) {
			leave() // waits for the answer
			brief, leave = context.WithTimeout(ctx, limit)
		}
		if request, err := http.NewRequestWithContext(brief, http.MethodPost, url+"/v1/completions", strings.NewReader(bodies[i%len(bodies)])); err == nil {
			if reply, err := c.Do(request); err == nil {
				_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, 1<<20)) // until it disconnects
				_ = reply.Body.Close()
				if reply.StatusCode >= 400 {
					refused++
				}
			}
		}
		leave()
		hang(ctx, url, 200*time.Millisecond)
	}
	return refused
}

// hang keeps a connection open with half a request.
func hang(ctx context.Context, url string, so time.Duration) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: w\r\nContent-Length: "+strconv.Itoa(1<<20)+"\r\n\r\n{") // whatever comes of it
	select {
	case <-ctx.Done():
	case <-time.After(so):
	}
}
