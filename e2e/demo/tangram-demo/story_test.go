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

// operated is a kubectl before a cluster where each `wait` ends a transition of `expertBytes` with
// a bound of 10, and a gateway that streams two tokens to every request.
func operated(t *testing.T, o options, port string, expertBytes int) *kube.Client {
	t.Helper()
	transition := `{"metadata":{"name":"lt-'$i'","uid":"'$i'"},"spec":{"deployment":"demo","fromEpoch":'$i',"expertBytes":` + fmt.Sprint(expertBytes) +
		`,"expertBoundBytes":10},"status":{"phase":"Succeeded","epoch":'$i',"startTime":"'$now'","completionTime":"'$now'"}}`
	writeTool(t, o.root, "build/bin/kubectl", `state="$(dirname "$0")/waits"; touch "$state"
case "$*" in
*"get -o json service"*) echo '{"spec":{"type":"NodePort","ports":[{"nodePort":`+port+`}]}}';;
*"get -o json nodes"*) echo '{"items":[{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}]}}]}';;
*"get -o json layouttransitions"*)
  now=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ); i=0; comma=
  printf '{"items":['
  for _ in $(cat "$state"); do i=$((i+1)); printf '%s' "$comma"; printf '%s' '`+transition+`'; comma=,; done
  echo ']}';;
*"get moedeployment demo -o json --watch"*) echo '{"status":{"epoch":1,"mode":"Expert"}}'; exec sleep 60;;
*" wait "*) echo x >> "$state";;
esac`)
	return &kube.Client{Binary: filepath.Join(o.root, "build/bin/kubectl"), Kubeconfig: "kc", Namespace: namespace}
}

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

func TestStoryDoesWhatAUserDoesAndKeepsRecords(t *testing.T) {
	r, results, asked := story(t, 10)
	require.Equal(t, []string{
		"kubectl -n demo scale moedeployment/demo --replicas=6", "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
		`kubectl -n demo patch moedeployment/demo --type=merge -p {"spec":{"mode":"Tensor"}}`, "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
		`kubectl -n demo patch moedeployment/demo --type=merge -p {"spec":{"mode":"Expert"}}`, "kubectl -n demo wait --for=condition=Ready moedeployment/demo --timeout=180s",
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
}

func TestMoreBytesThanTheBoundBreakAPromise(t *testing.T) {
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
