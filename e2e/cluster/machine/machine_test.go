package machine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestSpecRoundTrip(t *testing.T) {
	spec := &Spec{Name: "n2", Index: 2, Nodes: 3, Dir: t.TempDir(), Kube: "/k", Deb: "/d", ReservedMemory: 7}
	require.NoError(t, spec.Write())
	again, err := ReadSpec(spec.Dir, "n2")
	require.NoError(t, err)
	require.Equal(t, spec, again)
	_, err = ReadSpec(spec.Dir, "n3")
	require.ErrorContains(t, err, "machine n3")
}

// The configurations are correct, also in a folder with blanks and quotes in its name.
func TestConfigs(t *testing.T) {
	spec := &Spec{Name: "n1", Index: 1, Nodes: 1, Dir: filepath.Join(t.TempDir(), `a "b": c`), Deb: "/d", ReservedMemory: 1 << 30}
	require.NoError(t, spec.Write())
	require.NoError(t, spec.writeConfigs())
	var kubelet map[string]any
	text, err := os.ReadFile(spec.config("kubelet.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &kubelet))
	require.Equal(t, "/tangram-n1", kubelet["cgroupRoot"])
	require.Equal(t, map[string]any{"memory": "1073741824"}, kubelet["systemReserved"])
	require.Equal(t, filepath.Join(spec.PKI(), "n1-serving.crt"), kubelet["tlsCertFile"])
	require.Equal(t, "unix://"+containerdSock, kubelet["containerRuntimeEndpoint"])
	require.Equal(t, spec.config("resolv.conf"), kubelet["resolvConf"])
	var network map[string]any
	text, err = os.ReadFile(spec.config("cni/10-bridge.conflist"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &network))
	require.Contains(t, string(text), `"10.212.1.0/24"`)
	text, err = os.ReadFile(spec.config("containerd.toml"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "<no value>")
}

// reaper is the program's only reaper: two would take each other's children.
var reaper = sync.OnceValue(newProcesses)

// keep restarts a component after its end, with its output in one log; orphans are reaped, too.
func TestKeep(t *testing.T) {
	logs := t.TempDir()
	p := reaper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.keep(ctx, component{name: "hello", path: "/bin/sh", args: []string{"-c", "echo $0 once more; exit 3"}}, logs)
	}()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(logs, "hello.log"))
		p.mutex.Lock()
		defer p.mutex.Unlock()
		return err == nil && strings.Count(string(text), "once more\n") >= 2 && len(p.ended) == 0
	}, 4*time.Minute, 10*time.Millisecond, "it is started again, and processes that ended are forgotten") // only a hang takes so long
	cancel()
	<-ended
}
