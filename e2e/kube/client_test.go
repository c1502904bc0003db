package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/api/v1alpha2"
)

const wait = 4 * time.Minute // only a hang reaches this limit

// fake is a kubectl script that records its arguments and its input.
func fake(t *testing.T, script string) (c *Client, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	notes, binary := filepath.Join(dir, "calls"), filepath.Join(dir, "kubectl")
	text := "#!/bin/sh\necho \"$KUBECONFIG $*\" >> " + notes + "\n" + script + "\n"
	require.NoError(t, os.WriteFile(binary, []byte(text), 0o700)) //nolint:gosec // a program
	return &Client{Binary: binary, Kubeconfig: "kc", Namespace: "ns"}, func() string {
		wire, err := os.ReadFile(notes)
		require.NoError(t, err)
		return strings.TrimSpace(string(wire))
	}
}

func TestCommandsMatchUserCommands(t *testing.T) {
	c, calls := fake(t, "")
	var said []string
	c.Said = func(line string) { said = append(said, line) }
	require.NoError(t, c.Scale(t.Context(), "moedeployment/demo", 6))
	require.NoError(t, c.Patch(t.Context(), "moedeployment/demo", `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`))
	require.NoError(t, c.Wait(t.Context(), "moedeployment/demo", "Ready", 90*time.Second))
	require.NoError(t, c.In("other").Delete(t.Context(), "pod/demo-0", false))
	require.Equal(t, strings.Join([]string{
		"kc -n ns scale moedeployment/demo --replicas=6",
		`kc -n ns patch moedeployment/demo --type=merge -p {"spec":{"parallelism":{"mode":"TensorParallel"}}}`,
		"kc -n ns wait --for=condition=Ready moedeployment/demo --timeout=90s",
		"kc -n other delete pod/demo-0 --ignore-not-found --wait=false",
	}, "\n"), calls())
	require.Equal(t, []string{
		"kubectl -n ns scale moedeployment/demo --replicas=6",
		`kubectl -n ns patch moedeployment/demo --type=merge -p '{"spec":{"parallelism":{"mode":"TensorParallel"}}}'`,
		"kubectl -n ns wait --for=condition=Ready moedeployment/demo --timeout=90s",
		"kubectl -n other delete pod/demo-0 --ignore-not-found --wait=false",
	}, said)
}

func TestErrorsIncludeCommandAndOutput(t *testing.T) {
	c, _ := fake(t, `echo 'Error from server (NotFound): pods "x" not found' >&2; exit 1`)
	var into map[string]any
	err := c.Get(t.Context(), &into, "pod", "x")
	require.ErrorContains(t, err, `kubectl get -o json pod x: exit status 1: Error from server (NotFound): pods "x" not found`)
	require.True(t, NotFound(err))
	c, _ = fake(t, `echo 'Error from server (Forbidden)' >&2; exit 1`)
	require.False(t, NotFound(c.Get(t.Context(), &into, "pod", "x")))
	c, _ = fake(t, `echo '<html>'`)
	require.ErrorContains(t, c.Get(t.Context(), &into, "pod", "x"), "kubectl get -o json pod x gives no")
}

func TestRunEndsWithContext(t *testing.T) {
	c, _ := fake(t, "exec sleep 3600")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := c.Run(ctx, nil, "get", "pods")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), wait)
}

func TestApplySendsObjects(t *testing.T) {
	c, calls := fake(t, `cat >> "$(dirname "$0")/calls"`)
	require.NoError(t, c.Apply(t.Context(), map[string]string{"kind": "A"}, map[string]string{"kind": "B"}))
	require.Equal(t, "kc -n ns apply -f -\n{\"kind\":\"A\"}\n{\"kind\":\"B\"}", calls())
}

func TestTransitionsAreFilteredByWorldAndOrdered(t *testing.T) {
	c, _ := fake(t, `cat <<X
{"items":[
{"metadata":{"name":"late","creationTimestamp":"2030-01-01T00:00:02Z"},"spec":{"moeDeploymentName":"demo","from":{"epoch":1}}},
{"metadata":{"name":"second","creationTimestamp":"2030-01-01T00:00:01Z"},"spec":{"moeDeploymentName":"demo","from":{"epoch":4}}},
{"metadata":{"name":"other","creationTimestamp":"2030-01-01T00:00:01Z"},"spec":{"moeDeploymentName":"else","from":{"epoch":3}}},
{"metadata":{"name":"first","creationTimestamp":"2030-01-01T00:00:01Z"},"spec":{"moeDeploymentName":"demo","from":{"epoch":2}}}]}
X`)
	all, err := c.Transitions(t.Context(), "demo")
	require.NoError(t, err)
	var names []string
	for _, l := range all {
		names = append(names, l.Name)
	}
	require.Equal(t, []string{"first", "second", "late"}, names)
}

func TestWatchReportsEachVersion(t *testing.T) {
	c, calls := fake(t, `echo '{"status":{"epoch":1}}{"status":'; echo '{"epoch":2}}'`)
	var epochs []int64
	require.NoError(t, c.Watch(t.Context(), "demo", func(d *v1alpha2.MoEDeployment) { epochs = append(epochs, d.Status.Epoch) }))
	require.Equal(t, []int64{1, 2}, epochs)
	require.Equal(t, "kc -n ns get moedeployment demo -o json --watch", calls())

	c, _ = fake(t, `echo '{"status":{"epoch":1}}'; exec sleep 3600`)
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, c.Watch(ctx, "demo", func(*v1alpha2.MoEDeployment) { cancel() }), context.Canceled)
	c, _ = fake(t, "echo nonsense; exec sleep 3600")
	require.ErrorContains(t, c.Watch(t.Context(), "demo", nil), "invalid character")
}

func TestGatewayURL(t *testing.T) {
	const nodes = `{"items":[{"status":{"addresses":[{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"10.1.2.3"}]}}]}`
	answer := func(service string) *Client {
		c, _ := fake(t, `case "$*" in *service*) echo '`+service+`';; *) echo '`+nodes+`';; esac`)
		return c
	}
	url, err := answer(`{"spec":{"type":"NodePort","ports":[{"port":9},{"port":80,"nodePort":30080}]}}`).GatewayURL(t.Context(), "demo")
	require.NoError(t, err)
	require.Equal(t, "http://10.1.2.3:30080", url)
	_, err = answer(`{"spec":{"type":"ClusterIP","ports":[{"port":80}]}}`).GatewayURL(t.Context(), "demo")
	require.ErrorContains(t, err, "service demo-gateway of type ClusterIP has no node port")
}
