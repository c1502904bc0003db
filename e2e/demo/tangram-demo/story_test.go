package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

// operated is a kubectl of a fake cluster where each `wait` ends a transition of `expertBytes` with a bound of 10, and
// a gateway that streams two tokens to every request.
func operated(t *testing.T, o options, port string, expertBytes int) *kube.Client {
	t.Helper()
	transition := `{"metadata":{"name":"lt-'$i'","uid":"'$i'"},"spec":{"moeDeploymentName":"demo","from":{"epoch":'$i'},"expertBytes":` + fmt.Sprint(expertBytes) +
		`,"expertBytesLowerBound":10},"status":{"bytes":{"tcp":` + fmt.Sprint(expertBytes) + `},"phase":"Succeeded","epoch":'$i',"startTime":"'$now'","completionTime":"'$now'"}}`
	writeTool(t, o.root, "build/bin/kubectl", `state="$(dirname "$0")/waits"; touch "$state"
case "$*" in
*"get -o json service"*) echo '{"spec":{"type":"NodePort","ports":[{"nodePort":`+port+`}]}}';;
*"get -o json nodes"*) echo '{"items":[{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}]}}]}';;
*"get -o json layouttransitions"*)
  now=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ); i=0; comma=
  printf '{"items":['
  for _ in $(cat "$state"); do i=$((i+1)); printf '%s' "$comma"; printf '%s' '`+transition+`'; comma=,; done
  echo ']}';;
*"get -o json pods"*)
  spec='"spec":{"containers":[{"name":"gateway","ports":[{"name":"http","containerPort":8080},{"name":"metrics","containerPort":8081}]}]}'
  echo '{"items":[{"metadata":{"name":"gw-0"},'$spec'},{"metadata":{"name":"gw-1"},'$spec'}]}';;
*"get --raw"*"/pods/gw-"[01]":8081/proxy/metrics") printf '`+counts+`';;
*"get moedeployment demo -o json --watch"*) echo '{"status":{"epoch":1,"mode":"ExpertParallel"}}'; exec sleep 60;;
*" wait "*) echo x >> "$state";;
esac`)
	return &kube.Client{Binary: filepath.Join(o.root, "build/bin/kubectl"), Kubeconfig: "kc", Namespace: namespace}
}

// counts are each gateway's metrics.
const counts = `# TYPE tangram_gateway_conflicting_tokens_total counter\ntangram_gateway_conflicting_tokens_total 0\n` +
	`# TYPE tangram_gateway_duplicate_tokens_total counter\ntangram_gateway_duplicate_tokens_total 1\n` +
	`# TYPE tangram_gateway_orphaned_requests_total counter\ntangram_gateway_orphaned_requests_total 0\n` +
	`# TYPE tangram_gateway_lost_requests_total counter\ntangram_gateway_lost_requests_total 0\n`

func gateway(t *testing.T) (port string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `data: {"choices":[{"finish_reason":null,"token_ids":[7],"tangram":[{"logit_hash":"aa"}]}]}`+"\n\n"+
			`data: {"choices":[{"finish_reason":"length","token_ids":[8],"tangram":[{"logit_hash":"bb"}]}]}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	address, err := url.Parse(s.URL)
	require.NoError(t, err)
	return address.Port()
}

func story(t *testing.T, expertBytes int) (*report, []*load.Result, []string) {
	t.Helper()
	o, calls := tools(t, "true", "")
	o.pause, o.atOnce = 10*time.Millisecond, 4
	trace, err := load.NewTrace(1, 100*time.Millisecond)
	require.NoError(t, err)
	r := &report{}
	died := 0
	die := func(_ context.Context, _ options, _ *kube.Client, _ *load.Trace, r *report, begin func(string)) error {
		died++
		begin("somebody dies")
		r.Acts = []*act{{Name: "somebody"}}
		return nil
	}
	results, err := storyOnCluster(t.Context(), o, operated(t, o, gateway(t), expertBytes), trace, r, die)
	require.NoError(t, err)
	require.Equal(t, 1, died)
	require.Len(t, r.Acts, 1)
	asked := slices.DeleteFunc(calls(), func(line string) bool {
		return !strings.Contains(line, " scale ") && !strings.Contains(line, " patch ") && !strings.Contains(line, " wait ")
	})
	return r, results, asked
}

func TestStoryRunsUserCommandsAndKeepsRecords(t *testing.T) {
	r, results, asked := story(t, 10)
	require.Equal(t, []string{
		"kubectl -n demo scale moedeployment/demo --replicas=6", "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
		`kubectl -n demo patch moedeployment/demo --type=merge -p {"spec":{"parallelism":{"mode":"TensorParallel"}}}`, "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
		`kubectl -n demo patch moedeployment/demo --type=merge -p {"spec":{"parallelism":{"mode":"ExpertParallel"}}}`, "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
		"kubectl -n demo scale moedeployment/demo --replicas=4", "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
	}, asked)
	var epochs []uint64
	for _, s := range r.Transitions {
		epochs = append(epochs, s.Record.Epoch)
	}
	require.Equal(t, []uint64{1, 2, 3, 4}, epochs, "each step has the transition of its own")
	require.NotEmpty(t, results)
	require.NoError(t, r.judge(results, results, true))
	require.Empty(t, r.Broken)
	require.Zero(t, r.Lost)
	require.InDelta(t, 2, r.Gateway.Duplicates, 0, "the counts of both gateways")
}

// Violations break a promise: bytes that the agents counted beyond the plan, also from the checkpoint; rejections and
// replays without a kill; a conflicting token at any time.
func TestViolationsBreakPromises(t *testing.T) {
	r, results, _ := story(t, 10)
	died := time.Now()
	r.Acts[0].at, r.Acts[0].whole = died, died.Add(time.Second)
	results[0].Refused = []load.Refusal{{Status: 429, At: died.Add(-time.Second)}, {Status: 503, At: died.Add(-time.Second)},
		{Status: 429, At: died.Add(time.Millisecond)}, {Status: 503, At: died.Add(time.Millisecond)}}
	require.NoError(t, r.judge(results, results, true))
	require.Equal(t, []string{"1 requests got HTTP 429 while no process was killed", "1 requests got HTTP 503 while no process was killed"}, r.Broken)
	require.Equal(t, refusals{1, 1, 1, 1}, r.Refusals)
	results[0].Refused = nil

	r.Gateway = load.GatewayCounts{Replays: 3, Conflicts: 1, Duplicates: 5, Lost: 1}
	r.GatewayBefore.Replays = 2
	r.Transitions[1].Record.Bytes.TCP++
	r.Transitions[3].Record.Bytes.TCP--
	r.Transitions[3].Record.Bytes.Checkpoint++
	require.NoError(t, r.judge(results, results, true))
	require.Equal(t, []string{
		"EP -> TP: the agents received 11 bytes, 10 of experts and 0 of other weights were planned",
		"6 -> 4 ranks: 1 bytes were read from the checkpoint, and ranks hold all of them",
		"2 requests were retried in transitions in which no process was killed",
		"1 tokens mismatched: they differ from the token already delivered for their position",
		"1 accepted requests ended without their last token, as the gateways count"}, r.Broken)
}

// An event during which too few streams run proves nothing.
func TestStory_WhenTooFewStreamsRun(t *testing.T) {
	r, _, _ := story(t, 10)
	for i, transition := range r.Transitions {
		transition.Record.Started = time.Unix(1000+int64(i), 0)
	}
	r.Acts[0].at = time.Unix(1010, 0)
	stream := func(from, to int64) *load.Result {
		return &load.Result{Tokens: []load.Token{{At: time.Unix(from, 0)}, {At: time.Unix(to, 0)}}}
	}
	results := []*load.Result{stream(990, 1020), stream(990, 1020), stream(990, 1002), stream(1002, 1020)}
	r.leastStreams = 3
	require.NoError(t, r.judge(results, nil, false))
	require.Equal(t, []string{"TP -> EP: 2 streams ran when it began, and at least 3 are promised"}, r.Broken)
	require.Equal(t, 3, r.Acts[0].Requests)
	r.leastStreams = 0
	require.NoError(t, r.judge(results, nil, false))
	require.Empty(t, r.Broken)
}

// The clients' view of ten seconds in which tokens stop for four: nothing is subtracted.
func TestClientView_WhenTokensPause(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	steady := &load.Result{Sent: at(0)}
	var times []time.Time
	for s := .5; s <= 30; s += .5 {
		if s > 12 && s < 16 {
			continue
		}
		times = append(times, at(s))
		steady.Tokens = append(steady.Tokens, load.Token{At: at(s)})
	}
	late := &load.Result{Sent: at(13), Tokens: []load.Token{{At: at(16.5)}, {At: at(17)}}}
	var s seen
	s.measure([]*load.Result{steady, late}, times, at(10), at(20), .5, 5*time.Second)
	require.InDelta(t, 2, s.Before, .01)
	require.InDelta(t, 1.3, s.During, .01)
	require.InDelta(t, 2, s.After, .01)
	require.InDelta(t, .5, s.GapBefore, .01)
	require.InDelta(t, .5, s.GapAfter, .01)
	require.InDelta(t, 4, s.Gaps, .01)
	require.InDelta(t, 3.5, s.FirstToken, .01)
	s.measure([]*load.Result{late}, times, at(10), at(20), .5, 5*time.Second)
	require.Zero(t, s.Gaps, "nobody waits when it begins")
	require.Zero(t, s.GapBefore, "no token came before it")
	s.measure([]*load.Result{{Sent: at(1), Tokens: []load.Token{{At: at(18)}}}}, times, at(10), at(20), .5, 5*time.Second)
	require.InDelta(t, 4, s.Gaps, .01, "who waits for a first token counts")
}

func TestBytesBeyondBoundBreakPromise(t *testing.T) {
	r, results, _ := story(t, 11)
	results[0].Err = http.ErrAbortHandler
	other := *results[1]
	other.Tokens = slices.Clone(other.Tokens)
	other.Tokens[1].Hash = "cc"
	reference := slices.Clone(results)
	reference[1] = &other
	require.NoError(t, r.judge(results, reference, true))
	require.Equal(t, []string{"4 -> 6 ranks moved 11 expert bytes, the bound is 10", "6 -> 4 ranks moved 11 expert bytes, the bound is 10",
		"1 requests lost", "1 requests different"}, r.Broken)
}
