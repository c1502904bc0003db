package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/cluster/cluster"
	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/image"
	"tangram.dev/e2e/cluster/machine"
)

// build is the output folder of setup.sh.
func build(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TANGRAM_BUILD")
	if dir == "" {
		dir = "../../../build"
	}
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "bin/tangram-cluster"), "run e2e/cluster/setup.sh, or set TANGRAM_BUILD")
	return dir
}

// probeImage builds the archive of the probe's image.
func probeImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "probe"), filepath.Join(dir, "probe.tar")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./probe")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	spec := image.Spec{Name: "tangram.dev/probe:test", User: "65532", Files: []image.File{{Source: program, Target: "/bin/probe"}}}
	require.NoError(t, spec.Build(t.Context(), archive))
	return archive
}

const wait = 4 * time.Minute // only a hang reaches this limit

// testCluster is a folder of a cluster and the host's state before it.
type testCluster struct {
	t       *testing.T
	options cluster.Options
	before  Snapshot
	traces  Traces
}

// newCluster sets the sysctls to values that the kubelet changes, so that their restoration is visible.
func newCluster(t *testing.T) *testCluster {
	t.Helper()
	require.Zero(t, os.Geteuid(), "run as root")
	for name, value := range map[string]string{"vm/overcommit_memory": "0", "kernel/panic": "3", "kernel/panic_on_oops": "0"} {
		path := filepath.Join("/proc/sys", name)
		old, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(value), 0))
		t.Cleanup(func() { require.NoError(t, os.WriteFile(path, old, 0)) })
	}
	c := &testCluster{t: t, traces: Traces{}, options: cluster.Options{
		Dir: filepath.Join(t.TempDir(), "cluster"), Build: build(t), MemoryPerNode: 1 << 30,
		Say: func(format string, args ...any) { t.Logf(format, args...) },
	}}
	require.NoError(t, cluster.Down(t.Context(), c.options, false), "a killed run may have left its cluster")
	var err error
	c.before, err = TakeSnapshot()
	require.NoError(t, err)
	t.Cleanup(func() { // after a failed test
		require.NoError(t, cluster.Down(context.WithoutCancel(t.Context()), c.options, false))
	})
	return c
}

// nothingLeft checks the host after down.
func (c *testCluster) nothingLeft() {
	c.t.Helper()
	after, err := TakeSnapshot()
	require.NoError(c.t, err)
	require.Empty(c.t, strings.Join(after.Diff(c.before), "\n"), "the host is not as it was")
	left, err := c.traces.Left(c.options.Dir)
	require.NoError(c.t, err)
	require.Empty(c.t, strings.Join(left, "\n"), "processes are left")
	require.NoDirExists(c.t, c.options.Dir)
}

func (c *testCluster) kubectl(args ...string) string {
	c.t.Helper()
	output, err := c.tryKubectl(args...)
	require.NoError(c.t, err)
	return output
}

func (c *testCluster) tryKubectl(args ...string) (string, error) {
	command := exec.CommandContext(c.t.Context(), filepath.Join(c.options.Build, "bin/kubectl"),
		append([]string{"--kubeconfig", cluster.Kubeconfig(c.options.Dir), "-n", "probe"}, args...)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %v: %w: %s", args, err, stderr.String())
	}
	return string(output), err
}

// soon waits for a condition.
func (c *testCluster) soon(look func() error) {
	c.t.Helper()
	require.NoError(c.t, host.Poll(c.t.Context(), 200*time.Millisecond, wait, look))
}

func TestUpDownLeavesNothing(t *testing.T) {
	c := newCluster(t)
	// A program on the host that pods can reach; the preStop hook calls it.
	var stopped atomic.Int32
	archive := probeImage(t)
	c.options.Images = []string{archive}
	require.NoError(t, cluster.Up(t.Context(), c.options))

	listener, err := net.Listen("tcp", machine.HostAddress+":0")
	require.NoError(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: wait,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/prestop" {
				stopped.Add(1)
			}
		})}}
	server.Start()
	defer server.Close()

	models := t.TempDir()
	require.NoError(t, os.Chmod(models, 0o755))                                                         //nolint:gosec // the pods' user reads it
	require.NoError(t, os.Chmod(filepath.Dir(models), 0o755))                                           //nolint:gosec // the pods' user reads it
	require.NoError(t, os.WriteFile(filepath.Join(models, "weights"), []byte("from-host-path"), 0o644)) //nolint:gosec // the pods' user reads it
	manifest, err := os.ReadFile("testdata/pods.yaml")
	require.NoError(t, err)
	text := strings.NewReplacer("HOSTPATH", models, "HOSTADDRESS", listener.Addr().String()).Replace(string(manifest))
	file := filepath.Join(t.TempDir(), "pods.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c.kubectl("apply", "-f", file)
	c.kubectl("rollout", "status", "deployment/probe", "--timeout=4m")

	t.Run("pods", c.pods)
	t.Run("services", c.services)
	t.Run("memory", c.memory)
	t.Run("second cluster", c.second)
	t.Run("status", c.status)
	t.Run("kubelet restarts", c.componentRestarts)
	t.Run("cut and join", c.cutAndJoin)
	t.Run("kill and start", c.killAndStart)

	c.kubectl("delete", "deployment/probe", "--timeout=4m", "--cascade=foreground")
	require.GreaterOrEqual(t, stopped.Load(), int32(2), "preStop hooks did not run:\n%s", c.kubectl("get", "events"))
	require.NoError(t, c.traces.Add(c.options.Dir))
	require.NotEmpty(t, c.traces)
	require.NotEmpty(t, must(TakeSnapshot())(t).Diff(c.before), "the snapshot does not see a cluster")
	require.NoError(t, cluster.Down(t.Context(), c.options, true))
	require.FileExists(t, c.options.Dir+".logs/n1/kubelet.log")
	c.nothingLeft()
	require.NoError(t, cluster.Down(t.Context(), c.options, false), "a second time")
	c.nothingLeft()
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return value
	}
}

// pods have the same features as Tangram's.
func (c *testCluster) pods(t *testing.T) {
	output := c.kubectl("exec", "deployment/probe", "--", "/bin/probe", "cat",
		"/models/weights", "/run/probe/first", "/all/setting", "/all/key", "/all/labels", "/all/token")
	for _, want := range []string{"from-host-path", "from-init-container", "from-config-map", "from-secret", `app="probe"`, "eyJ"} {
		require.Contains(t, output, want)
	}
	_, err := c.tryKubectl("exec", "deployment/probe", "--", "/bin/probe", "write", "/models/weights", "x")
	require.ErrorContains(t, err, "read-only file system")
	require.Contains(t, c.kubectl("logs", "deployment/probe"), "serving")
	nodes := strings.Fields(c.kubectl("get", "pods", "-l", "app=probe", "-o", "jsonpath={.items[*].spec.nodeName}"))
	require.ElementsMatch(t, []string{"n1", "n2"}, nodes)
	require.NoError(t, c.traces.Add(c.options.Dir))
}

// services are reached from the host by NodePort on every node and by port-forward, and from pods; pods are reached at
// their addresses, from the host and across nodes.
func (c *testCluster) services(t *testing.T) {
	for i := 1; i <= 2; i++ {
		c.soon(func() error { return c.get(fmt.Sprintf("http://%s:30080", machine.NodeAddress(i))) })
	}
	for _, ip := range strings.Fields(c.kubectl("get", "pods", "-l", "app=probe", "-o", "jsonpath={.items[*].status.podIP}")) {
		c.soon(func() error { return c.get("http://" + net.JoinHostPort(ip, "8080")) })
		for _, pod := range strings.Fields(c.kubectl("get", "pods", "-l", "app=probe", "-o", "jsonpath={.items[*].metadata.name}")) {
			c.soon(func() error {
				text, err := c.tryKubectl("exec", pod, "--", "/bin/probe", "get", "http://"+ip+":8080")
				if err == nil && !strings.Contains(text, "hello from probe-") {
					err = fmt.Errorf("%s answers pod %s: %q", ip, pod, text)
				}
				return err
			})
		}
	}
	ip := c.kubectl("get", "service", "probe", "-o", "jsonpath={.spec.clusterIP}")
	c.soon(func() error {
		_, err := c.tryKubectl("exec", "deployment/probe", "--", "/bin/probe", "get", "http://"+ip)
		return err
	})

	forward := exec.CommandContext(t.Context(), filepath.Join(c.options.Build, "bin/kubectl"), "--kubeconfig", cluster.Kubeconfig(c.options.Dir),
		"-n", "probe", "port-forward", "deployment/probe", ":8080")
	stdout, err := forward.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, forward.Start())
	defer func() { _ = forward.Process.Kill(); _ = forward.Wait() }()
	var port int
	_, err = fmt.Fscanf(stdout, "Forwarding from 127.0.0.1:%d", &port)
	require.NoError(t, err)
	c.soon(func() error { return c.get(fmt.Sprintf("http://127.0.0.1:%d", port)) })
}

func (c *testCluster) get(url string) error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && !strings.Contains(string(text), "hello from probe-") {
		err = fmt.Errorf("%s answers %q", url, text)
	}
	return err
}

// memory of a node equals the option, so a larger pod stays pending.
func (c *testCluster) memory(t *testing.T) {
	require.Equal(t, "1Gi", c.kubectl("get", "node", "n1", "-o", "jsonpath={.status.allocatable.memory}"))
	c.soon(func() error {
		why := c.kubectl("get", "pod", "too-big", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		if !strings.Contains(why, "Insufficient memory") {
			return fmt.Errorf("pod too-big: %q", why)
		}
		return nil
	})
}

// second starts another cluster on this machine, which is rejected with the first one's folder; the first one stays.
func (c *testCluster) second(t *testing.T) {
	other := c.options
	other.Dir = filepath.Join(t.TempDir(), "other")
	require.ErrorContains(t, cluster.Up(t.Context(), other), c.options.Dir)
	require.NoDirExists(t, other.Dir)
	require.NoError(t, cluster.Down(t.Context(), other, false))
	require.ErrorContains(t, cluster.Up(t.Context(), c.options), "is up already")
	c.kubectl("get", "nodes")
}

func (c *testCluster) status(t *testing.T) {
	machines, err := cluster.Status(t.Context(), c.options)
	require.NoError(t, err)
	require.Len(t, machines, 3)
	for i, want := range []struct{ name, node, components string }{
		{"cp", "", "etcd kube-apiserver kube-controller-manager kube-scheduler"}, {"n1", "Ready", "containerd kube-proxy kubelet"}, {"n2", "Ready", "containerd kube-proxy kubelet"},
	} {
		require.Equal(t, want.name, machines[i].Name)
		require.Equal(t, want.node, machines[i].Node)
		require.True(t, machines[i].Link)
		for _, component := range strings.Fields(want.components) {
			require.Contains(t, strings.Join(machines[i].Components, " "), component+"(")
		}
	}
}

// componentRestarts kills a component, which restarts; the node's pods stay.
func (c *testCluster) componentRestarts(t *testing.T) {
	uids := c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].restartCount}")
	kubelet := func() int {
		machines := must(cluster.Status(t.Context(), c.options))(t)
		for _, component := range machines[1].Components {
			var pid int
			if _, err := fmt.Sscanf(component, "kubelet(%d)", &pid); err == nil {
				return pid
			}
		}
		return 0
	}
	old := kubelet()
	process, err := os.FindProcess(old)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	c.soon(func() error {
		if now := kubelet(); now == 0 || now == old {
			return fmt.Errorf("kubelet: process %d, was %d", now, old)
		}
		_, err := c.tryKubectl("exec", "deployment/probe", "--", "/bin/probe", "cat", "/models/weights")
		return err
	})
	require.Equal(t, uids, c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].restartCount}"))
}

// cutAndJoin cuts a node, which then receives nothing, and joins it again.
func (c *testCluster) cutAndJoin(t *testing.T) {
	url := "http://" + net.JoinHostPort(c.kubectl("get", "pods", "-l", "app=probe", "-o", "jsonpath={.items[?(@.spec.nodeName=='n2')].status.podIP}"), "8080")
	c.soon(func() error { return c.get(url) })
	require.NoError(t, cluster.SetLink(t.Context(), c.options, "n2", false))
	require.Error(t, c.get(url))
	require.False(t, must(cluster.Status(t.Context(), c.options))(t)[2].Link)
	require.NoError(t, cluster.SetLink(t.Context(), c.options, "n2", true))
	c.soon(func() error { return c.get(url) })
}

// killAndStart kills a node, which then has no process; after a restart its pods run again, with the loaded images.
func (c *testCluster) killAndStart(t *testing.T) {
	restarts := func() string {
		return c.kubectl("get", "pods", "-l", "app=probe", "-o", "jsonpath={.items[?(@.spec.nodeName=='n1')].status.containerStatuses[0].restartCount}")
	}
	require.Equal(t, "0", restarts())
	require.ErrorContains(t, cluster.KillMachine(t.Context(), c.options, "n9"), "cp, n1, n2")
	require.NoError(t, cluster.KillMachine(t.Context(), c.options, "n1"))
	require.ErrorContains(t, cluster.KillMachine(t.Context(), c.options, "n1"), "does not run")
	machines := must(cluster.Status(t.Context(), c.options))(t)
	require.Zero(t, machines[1].PID)
	require.NoError(t, cluster.StartMachine(t.Context(), c.options, "n1"))
	require.ErrorContains(t, cluster.StartMachine(t.Context(), c.options, "n1"), "runs already")
	c.soon(func() error {
		if n := restarts(); n != "1" {
			return fmt.Errorf("%s restarts of the container on n1", n)
		}
		return nil
	})
	c.kubectl("rollout", "status", "deployment/probe", "--timeout=4m")
}

// TestInterruptedUp kills `up` at different points; `down` then restores the host.
func TestInterruptedUp(t *testing.T) {
	for _, after := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second, 8 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			c := newCluster(t)
			var output bytes.Buffer
			up := exec.CommandContext(t.Context(), filepath.Join(c.options.Build, "bin/tangram-cluster"), "up", "--dir", c.options.Dir)
			up.Stdout, up.Stderr = &output, &output
			require.NoError(t, up.Start())
			time.Sleep(after)
			_ = up.Process.Kill() // the last one may have ended
			_ = up.Wait()
			require.NoError(t, c.traces.Add(c.options.Dir))
			t.Logf("%d traces; up said:\n%s", len(c.traces), output.String())
			require.NoError(t, cluster.Down(t.Context(), c.options, false))
			c.nothingLeft()
		})
	}
}

// TestUpAfterInterruptedUp: `up` in the same folder removes the remains itself; a failed `up` removes itself and keeps
// its logs.
func TestUpAfterInterruptedUp(t *testing.T) {
	c := newCluster(t)
	up := exec.CommandContext(t.Context(), filepath.Join(c.options.Build, "bin/tangram-cluster"), "up", "--dir", c.options.Dir)
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	up.ExtraFiles = []*os.File{writer}
	require.NoError(t, up.Start())
	require.NoError(t, writer.Close())
	time.Sleep(2 * time.Second)
	require.NoError(t, up.Process.Kill())
	_ = up.Wait()
	require.NoError(t, c.traces.Add(c.options.Dir))
	require.NotEmpty(t, c.traces)
	require.NoError(t, reader.SetReadDeadline(time.Now().Add(wait)))
	_, err = reader.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "machines hold a file that up inherited")
	require.NoError(t, reader.Close())

	bad := filepath.Join(t.TempDir(), "bad.tar")
	require.NoError(t, os.WriteFile(bad, []byte("not an image"), 0o600))
	c.options.Images = []string{bad}
	err = cluster.Up(t.Context(), c.options)
	require.ErrorContains(t, err, bad)
	require.NotContains(t, err.Error(), "does not go away")
	require.FileExists(t, c.options.Dir+".logs/n1/machine.log")
	c.nothingLeft()
}
