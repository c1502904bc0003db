package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

func call(args ...string) (int, string, string) {
	var out, errs bytes.Buffer
	code := run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	certs := filepath.Join(dir, "certs")
	code, _, errs := call("certificates", "--dir", certs, "--world", "w", "driver", "agent/p0")
	require.Zero(t, code, errs)
	write := func(name string, value any) string {
		wire, err := json.Marshal(value)
		require.NoError(t, err)
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, wire, 0o600))
		return path
	}
	world := func(change func(map[string]any)) map[string]any {
		w := map[string]any{"world": "w", "agents": []string{"127.0.0.1:1"}, "store": filepath.Join(dir, "store.json"),
			"tls": map[string]string{"ca": filepath.Join(certs, "ca.crt"), "cert": filepath.Join(certs, "driver.crt"), "key": filepath.Join(certs, "driver.key")}}
		change(w)
		return w
	}
	good := write("good.json", world(func(map[string]any) {}))
	for _, c := range []struct {
		name string
		code int
		want string
		args []string
	}{
		{"an unknown command", 2, `unknown command "fly"`, []string{"fly"}},
		{"an unknown flag", 2, "--wings", []string{"apply", "--wings"}},
		{"no flags", 2, `"ranks", "world-file" not set`, []string{"apply"}},
		{"an argument too many", 2, "unknown command", []string{"status", "--world-file", good, "x"}},
		{"width 0", 2, "--ranks is 0", []string{"apply", "--world-file", good, "--ranks", "0"}},
		{"a hybrid of nothing", 2, "--mode Hybrid needs --layer-shape", []string{"run", "--world-file", good, "--ranks", "2", "--mode", "Hybrid"}},
		{"a mode", 2, `unknown mode "Diagonal"`, []string{"apply", "--world-file", good, "--ranks", "1", "--mode", "Diagonal"}},
		{"a shape", 2, `--layer-shape "3-1=1/1"`, []string{"apply", "--world-file", good, "--ranks", "1", "--layer-shape", "3-1=1/1"}},
		{"a log level", 2, "--log-level", []string{"apply", "--world-file", good, "--ranks", "1", "--log-level", "loud"}},
		{"no world file", 2, "no such file", []string{"apply", "--world-file", filepath.Join(dir, "none"), "--ranks", "1"}},
		{"a key too many", 2, `unknown field "worlds"`, []string{"status", "--world-file", write("key.json", world(func(w map[string]any) { w["worlds"] = 1 }))}},
		{"no agents", 2, "want the keys world, agents and store", []string{"status", "--world-file", write("agents.json", world(func(w map[string]any) { delete(w, "agents") }))}},
		{"no certificate", 2, "pki:", []string{"status", "--world-file", write("tls.json", world(func(w map[string]any) { delete(w, "tls") }))}},
		{"another world's authority", 2, `not the authority of world "v"`, []string{"certificates", "--dir", certs, "--world", "v", "driver"}},
		{"nobody listens", 1, "agent 127.0.0.1:1: Status", []string{"status", "--world-file", good}},
		{"nobody to apply to", 1, "query the agents", []string{"apply", "--world-file", good, "--ranks", "1"}},
		{"run without ranks", 2, `"ranks" not set`, []string{"run", "--world-file", good}},
		{"run of no shape", 2, `unknown mode "Diagonal"`, []string{"run", "--world-file", good, "--ranks", "1", "--mode", "Diagonal"}},
		{"help", 0, "", []string{"apply", "--help"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := call(c.args...)
			require.Equal(t, c.code, code, out+errs)
			require.Contains(t, errs, c.want)
			if c.code != 0 {
				require.Contains(t, errs, "tangram-driver: ")
			}
		})
	}
}

// A keeper continues after all errors, and a signal ends it with success.
func TestRunContinuesUntilSIGTERM(t *testing.T) {
	dir := t.TempDir()
	certs := filepath.Join(dir, "certs")
	code, _, errs := call("certificates", "--dir", certs, "--world", "w", "driver")
	require.Zero(t, code, errs)
	wire, err := json.Marshal(map[string]any{"world": "w", "agents": []string{"127.0.0.1:1"}, "store": filepath.Join(dir, "store.json"),
		"tls": map[string]string{"ca": filepath.Join(certs, "ca.crt"), "cert": filepath.Join(certs, "driver.crt"), "key": filepath.Join(certs, "driver.key")}})
	require.NoError(t, err)
	world := filepath.Join(dir, "world.json")
	require.NoError(t, os.WriteFile(world, wire, 0o600))
	mine := make(chan os.Signal, 1) // so that the signal never ends the test itself
	signal.Notify(mine, syscall.SIGTERM)
	defer signal.Stop(mine)
	var out, logs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run([]string{"run", "--world-file", world, "--ranks", "2", "--agents-file", filepath.Join(dir, "agents")}, &out, &logs)
	}()
	time.Sleep(200 * time.Millisecond) // there is no such file yet
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agents"), []byte("127.0.0.1:1\n"), 0o600))
	for code := -1; code < 0; {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM)) // again, because it may not listen yet
		select {
		case code = <-ended:
			require.Zero(t, code, logs.String())
		case <-time.After(300 * time.Millisecond):
		}
	}
	require.Empty(t, out.String(), "nothing was done")
}

func TestAgentsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agents")
	require.NoError(t, os.WriteFile(path, []byte("# pods\n a:1 \n\nb:2\na:1\n"), 0o600))
	agents, err := readAgents(path)
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "b:2"}, agents)
	_, err = readAgents(path + ".none")
	require.ErrorContains(t, err, "--agents-file")
}

func TestLayerShapes(t *testing.T) {
	want, err := wanted(4, "TensorParallel", []string{"0-2=4/2", "1=1/1"}, "", 2)
	require.NoError(t, err)
	require.Equal(t, layout.Tensor, want.Shape.Mode)
	require.Equal(t, map[uint32]layout.LayerShape{0: {ExpertGroup: 4, AttentionGroup: 2}, 1: {ExpertGroup: 1, AttentionGroup: 1},
		2: {ExpertGroup: 4, AttentionGroup: 2}}, want.Shape.Layers)
	for _, bad := range []string{"", "1", "1=2", "1=2/", "a=1/1", "1-=1/1", "2-1=1/1", "0=0/1", "0=1/0", "0=1/70000", "-1=1/1"} {
		_, err := wanted(4, "TensorParallel", []string{bad}, "", 2)
		require.ErrorContains(t, err, "--layer-shape", bad)
	}
}
