package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tangram.dev/e2e/load"
)

// Options of a world. Zero values select the demo's values.
type Options struct {
	Root       string // of the repository
	Dir        string // for this world's files; replaced
	World      string
	Checkpoint string
	Revision   string
	Pods       []int // ranks of each pod
	Memory     uint64
	KV         uint64
	SpareBanks int
	Granule    int
	MaxTokens  int            // of a request: prompt and answer
	Rows       int            // of a step of an engine
	Faults     map[int]string // --faults of the agents of these pods
	// EngineFaults of the engines of these pods.
	EngineFaults map[int]string
	// FaultDirs makes every process follow World.FaultDir of its pod (agent/base/fault.h).
	FaultDirs bool
	// Restart restarts an agent or an engine that ends unexpectedly, as a kubelet would.
	Restart bool
	// Nodes gives every pod a separate network with one link, which Link cuts. Only within IsolateNetwork.
	Nodes bool
	// Patience is the engines' timeout for an unresponsive peer; 0: their default. A world without repair needs a long
	// one, or a slow machine is taken for a death.
	Patience time.Duration
	// Hangs says that the test stops processes on purpose, so Patience and Reattach keep the product's defaults.
	Hangs bool
	// Reattach is how long a keeper waits for an engine to reattach while its agent lives; 0: its default.
	Reattach time.Duration
	// LeastStep is the minimum duration of an engine's step with work, so that a busy world leaves time for other
	// processes.
	LeastStep time.Duration
	// MaxStepStretch is the maximum stretch of steps in percent while bytes are staged; 0: MoEDeployment's default;
	// negative: unlimited.
	MaxStepStretch int
	// EngineFlags are additional flags of every engine.
	EngineFlags []string
	// PodFlags are additional flags of the engines of one pod, by its index, after EngineFlags.
	PodFlags map[int][]string
	// Engine is a command that replaces the reference engine; the same flags follow it.
	Engine []string
	// Forked says that the process of Engine forks the engine, and another one with the same flags after that dies.
	Forked bool
	// Text has the flags of a text server (vLLM's) next to the gateway; nil: none.
	Text []string
	// Frontends are host:port of ranks that are not processes of this world.
	Frontends []string
	// StubEngines selects engines that compute nothing (e2e/stub), without a gateway: to measure the cost of agents and
	// control.
	StubEngines bool
	// StubStep is the duration of a stub engine's step; 0: the default of the stubs.
	StubStep time.Duration
	// SizesOnly selects memory that has sizes and no bytes.
	SizesOnly bool
	// OneNode lets agents map each other's memory, like pods of one node that share a folder.
	OneNode bool
	// HugePages puts weights and KV in huge pages of the machine's pool, which must have enough.
	HugePages bool
	// SlabFormat is granule-major (if empty) or row-major.
	SlabFormat string
	// Wire is the communication library between agents; empty: TCP.
	Wire string
	// PageBytes of the geometry; 0: the agent's default.
	PageBytes uint64
	// DescriptorBytes splits agents' memory into descriptors of this size, like that of devices with handles; 0: one
	// descriptor.
	DescriptorBytes uint64
	// CudaDriver selects platform cuda for weights and KV; it is the path of the driver's library. The recording driver
	// has handles of PageBytes, and reports errors at the end (World.CudaReports).
	CudaDriver string
}

// World is a set of running processes.
type World struct {
	o          Options
	certs      string
	net        uint16 // its pods have addresses 127.<net>.x
	socketDir  string
	mu         sync.Mutex
	pods       []*pod // only grows; a pod keeps its index
	gateway    *process
	stub       *process // simulates the engines
	text       *process // nil: none
	gatewayURL string
	// gatewayMetrics is the URL of the gateway's metrics.
	gatewayMetrics string
	telemetry      string // for the operator, host:port
	file           string
	agentsFile     string
	writing        sync.Mutex // of the world file and the gateway's file
}

func (o *Options) defaults() {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&o.Root, ".")
	set(&o.World, "demo")
	set(&o.Revision, "r1")
	set(&o.Checkpoint, filepath.Join(o.Root, "build/models/demo"))
	o.StubEngines = o.StubEngines || o.SizesOnly
	if o.Memory == 0 {
		o.Memory = 512 << 20
	}
	if o.KV == 0 {
		o.KV = 64 << 20
	}
	if o.SpareBanks == 0 {
		o.SpareBanks = 2 // the default of a MoEDeployment
	}
	if o.Granule == 0 {
		o.Granule = 16
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 512
	}
	if o.Rows == 0 {
		o.Rows = 24
	}
}

func (o *Options) binary(env, fallback, path string) string {
	dir := os.Getenv(env)
	if dir == "" {
		dir = filepath.Join(o.Root, fallback)
	}
	return filepath.Join(dir, path)
}
func (o *Options) cxx(path string) string  { return o.binary("TANGRAM_CXX", "build/cxx", path) }
func (o *Options) tool(name string) string { return o.binary("TANGRAM_BIN", "build/bin", name) }

var worldsSoFar atomic.Uint32

// newNet differs between the worlds of a process and, most likely, between processes. Worlds with the same number are
// like processes of one machine.
func newNet() uint16 { return uint16(256 + (uint32(os.Getpid())*31+worldsSoFar.Add(1))%60000) }

// Start starts all processes; no layout is active yet. After an error no process is left running.
func Start(ctx context.Context, o Options) (w *World, err error) {
	o.defaults()
	for _, path := range []*string{&o.Dir, &o.Root, &o.Checkpoint} {
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, err
	}
	w = &World{o: o, certs: filepath.Join(o.Dir, "certs"), net: newNet(), file: filepath.Join(o.Dir, "world.json"),
		agentsFile: filepath.Join(o.Dir, "agents")}
	defer func() {
		if err != nil {
			w.Stop()
			w = nil
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return w, err
	}
	// The path of a UNIX socket must be short.
	if w.socketDir, err = os.MkdirTemp("", "tangram"); err != nil {
		return w, err
	}
	roles := []string{"driver", "gateway"}
	for i := range o.Pods {
		roles = append(roles, rolesOf(i)...)
	}
	if err := w.Certificates(ctx, w.certs, roles...); err != nil {
		return w, err
	}
	if err := w.startPods(ctx); err != nil {
		return w, err
	}
	if err := w.writeWorldFile(); err != nil {
		return w, err
	}
	if o.StubEngines {
		return w, w.startStub(ctx)
	}
	if err := w.startGateway(ctx); err != nil || o.Text == nil {
		return w, err
	}
	return w, w.startText()
}

// all returns all pods, killed ones included.
func (w *World) all() []*pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*pod(nil), w.pods...)
}

func (w *World) startPods(ctx context.Context) error {
	for i, ranks := range w.o.Pods {
		w.pods = append(w.pods, &pod{w: w, index: i, engines: make([]*process, ranks), meshes: make([]string, ranks), serves: make([]string, ranks)})
	}
	errs := make([]error, len(w.o.Pods))
	var wait sync.WaitGroup
	for i, p := range w.all() {
		wait.Go(func() { errs[i] = p.start(ctx) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// address returns a separate address per pod, as in a cluster: the port of a process that restarts stays free.
func (w *World) address(pod int) string {
	return fmt.Sprintf("127.%d.%d.%d", w.net>>8, w.net&0xff, 1+pod%250)
}

// Certificates writes certificates of this world's name for roles into dir, signed by the existing authority, or by a
// new one.
func (w *World) Certificates(ctx context.Context, dir string, roles ...string) error {
	hosts := []string{"127.0.0.1", "localhost"} // for clients that check names; ours check roles
	for i := range w.o.Pods {
		hosts = append(hosts, w.address(i))
	}
	args := append([]string{"certificates", "--dir", dir, "--world", w.o.World, "--hosts", strings.Join(hosts, ",")}, roles...)
	if out, err := exec.CommandContext(ctx, w.o.tool("tangram-driver"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("certificates: %w: %s", err, out)
	}
	return nil
}

// rolesOf returns the roles in a pod's certificates.
func rolesOf(pod int) []string {
	return []string{fmt.Sprintf("agent/p%d", pod), fmt.Sprintf("engine/p%d", pod)}
}

// CertificateDir holds ca.crt and, by role, NAME.crt and NAME.key ("agent-p0.crt").
func (w *World) CertificateDir() string { return w.certs }

func (w *World) cert(name string) map[string]string {
	return map[string]string{"ca": filepath.Join(w.certs, "ca.crt"), "cert": filepath.Join(w.certs, name+".crt"), "key": filepath.Join(w.certs, name+".key")}
}

func (w *World) writeWorldFile() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	wire, err := json.MarshalIndent(map[string]any{"world": w.o.World, "agents": w.Agents(),
		"store": filepath.Join(w.o.Dir, "store.json"), "tls": w.cert("driver")}, "", " ")
	if err != nil {
		return err
	}
	if err := writeWhole(w.file, wire); err != nil {
		return err
	}
	return writeWhole(w.agentsFile, []byte(strings.Join(w.Agents(), "\n")+"\n"))
}

// writeWhole replaces a file atomically: a reader sees the old or the new content.
func writeWhole(path string, content []byte) error {
	if err := os.WriteFile(path+".part", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// startStub starts one process that simulates the engines of all pods.
func (w *World) startStub(ctx context.Context) error {
	var args []string
	for _, p := range w.all() {
		args = append(args, "--agent-socket", p.socket(), "--token-file", p.token(), "--ranks", fmt.Sprint(len(p.engines)))
	}
	if w.o.StubStep > 0 {
		args = append(args, "--step-ms", fmt.Sprint(w.o.StubStep.Milliseconds()))
	}
	stub, err := start(w.o.Dir, "stub", w.o.cxx("e2e/stub/tangram-stub-engines"), append(args, "--steps-file", w.stubSteps(), "--ready-file", filepath.Join(w.o.Dir, "stub.ready"))...)
	if err != nil {
		return err
	}
	w.stub = stub
	return stub.waitReady(ctx, &struct{}{})
}

func (w *World) stubSteps() string { return filepath.Join(w.o.Dir, "stub.steps") }

// StubSteps returns the end times of all steps of the stub engines so far.
func (w *World) StubSteps() ([]time.Time, error) {
	wire, err := os.ReadFile(w.stubSteps())
	if err != nil {
		return nil, err
	}
	var out []time.Time
	for line := range strings.Lines(string(wire)) {
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.stubSteps(), err)
		}
		out = append(out, time.Unix(0, ns))
	}
	return out, nil
}

func (w *World) startGateway(ctx context.Context) error {
	tls := w.cert("gateway")
	args := []string{"--world", w.o.World, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--telemetry-listen", "127.0.0.1:0", "--model", w.o.World, "--tls-ca", tls["ca"], "--tls-cert", tls["cert"],
		"--tls-key", tls["key"], "--ready-file", filepath.Join(w.o.Dir, "gateway.ready")}
	if w.o.Text != nil {
		args = append(args, "--text-socket", w.textSocket(), "--tokens-socket", w.tokensSocket())
	} else {
		args = append(args, "--tokenizer", "bytes")
	}
	seeds := w.o.Frontends
	for _, p := range w.all() {
		seeds = append(seeds, p.frontends...)
	}
	for _, f := range seeds {
		args = append(args, "--seed", f)
	}
	gateway, err := start(w.o.Dir, "gateway", w.o.tool("tangram-gateway"), args...)
	if err != nil {
		return err
	}
	w.gateway = gateway
	var ready struct {
		Address string `json:"address"`
		Metrics string `json:"metrics"`

		Telemetry string `json:"telemetry"`
	}
	if err := gateway.waitReady(ctx, &ready); err != nil {
		return err
	}
	w.gatewayURL, w.gatewayMetrics, w.telemetry = "http://"+ready.Address, "http://"+ready.Metrics+"/metrics", ready.Telemetry
	return nil
}

// GatewayCounts returns the gateway's counts since its start.
func (w *World) GatewayCounts(ctx context.Context) (load.GatewayCounts, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.gatewayMetrics, nil)
	if err != nil {
		return load.GatewayCounts{}, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return load.GatewayCounts{}, err
	}
	defer func() { _ = reply.Body.Close() }() // only read
	return load.ReadGatewayCounts(reply.Body)
}

// URL returns the gateway's URL.
func (w *World) URL() string { return w.gatewayURL }

// MetricsURL returns the URL of the gateway's metrics.
func (w *World) MetricsURL() string { return w.gatewayMetrics }

// TelemetryAddress returns the gateway's telemetry address; it requires the driver's certificate.
func (w *World) TelemetryAddress() string { return w.telemetry }

// AgentMetricsURLs returns the URLs of the agents' metrics, without killed pods.
func (w *World) AgentMetricsURLs() []string {
	var out []string
	for _, p := range w.all() {
		if p.agentAddress() != "" {
			out = append(out, "http://"+p.metricsAddress()+"/metrics")
		}
	}
	return out
}

// Model is the model's name at the gateway.
func (w *World) Model() string { return w.o.World }

// Dir returns the folder of files and logs.
func (w *World) Dir() string { return w.o.Dir }

// Agents returns the addresses of the agents' control services, without killed pods.
func (w *World) Agents() []string {
	var out []string
	for _, p := range w.all() {
		if address := p.agentAddress(); address != "" {
			out = append(out, address)
		}
	}
	return out
}

// Stop ends all processes of Start. It may be called twice.
func (w *World) Stop() {
	for _, p := range []*process{w.gateway, w.stub, w.text} {
		if p != nil {
			p.stop()
		}
	}
	var wait sync.WaitGroup
	for _, p := range w.all() {
		wait.Go(p.stop)
	}
	wait.Wait()
	w.mu.Lock()
	w.gateway, w.stub, w.text, w.pods = nil, nil, nil, nil
	w.mu.Unlock()
	if w.socketDir != "" {
		_ = os.RemoveAll(w.socketDir) // leftover files are harmless
	}
}

// Died names a process that ended unexpectedly and is not restarted, or returns "".
func (w *World) Died() string {
	var all []*process
	for _, p := range []*process{w.gateway, w.stub, w.text} {
		if p != nil {
			all = append(all, p)
		}
	}
	for _, p := range w.all() {
		all = append(all, p.ended()...)
	}
	for _, p := range all {
		select {
		case <-p.ended:
			return fmt.Sprintf("%s: %v; the end of its log:\n%s", p.name, p.err, tail(p.log, 10))
		default:
		}
	}
	return ""
}

// Pods returns pods of 2 ranks; the last one has 1 if the number is odd.
func Pods(ranks int) []int {
	var out []int
	for ; ranks > 1; ranks -= 2 {
		out = append(out, 2)
	}
	if ranks == 1 {
		out = append(out, 1)
	}
	return out
}
