package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// restartAfter is the minimum delay of a kubelet's restart.
const restartAfter = 100 * time.Millisecond

// Fixed ports of forked engines; each pod has a separate address.
const forkedMesh, forkedServe = 7100, 7200

// pod is an agent and an engine per rank.
type pod struct {
	w     *World
	index int

	mu        sync.Mutex
	agent     *process
	engines   []*process // by device
	address   string
	metrics   string // host:port of the agent's metrics
	frontends []string
	// Addresses of restarted processes: those of their predecessors, as in a pod.
	data   string
	meshes []string // by device
	serves []string // by device
	gone   bool     // killed or stopped: its processes are not restarted
}

func (p *pod) start(ctx context.Context) error {
	if p.w.o.Nodes {
		if err := addNode(ctx, p.index); err != nil {
			return err
		}
	}
	if p.w.o.FaultDirs {
		if err := os.MkdirAll(p.w.FaultDir(p.index), 0o750); err != nil {
			return err
		}
	}
	if err := p.startAgent(ctx); err != nil {
		return err
	}
	for device := range p.engines {
		if p.w.o.StubEngines { // one process simulates all of them
			break
		}
		if err := p.startEngine(ctx, device); err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) startAgent(ctx context.Context) error {
	agent, err := p.runAgent()
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.gone { // killed in the meantime
		p.mu.Unlock()
		agent.remove()
		return nil
	}
	p.agent = agent
	p.mu.Unlock()
	var ready struct {
		Agent   string `json:"agent"`
		Data    string `json:"data"`
		Metrics string `json:"metrics"`
	}
	if err := agent.waitReady(ctx, &ready); err != nil {
		agent.remove() // the caller may start another one
		return err
	}
	go p.watch(agent, p.startAgent)
	p.mu.Lock()
	p.address, p.data, p.metrics = ready.Agent, ready.Data, ready.Metrics
	p.mu.Unlock()
	return p.w.writeWorldFile()
}

func (p *pod) startEngine(ctx context.Context, device int) error {
	engine, err := p.runEngine(device)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		engine.remove()
		return nil
	}
	p.engines[device] = engine
	p.mu.Unlock()
	var ready struct {
		Frontend string `json:"frontend"`
		Mesh     string `json:"mesh"`
	}
	if err := engine.waitReady(ctx, &ready); err != nil {
		engine.remove()
		return err
	}
	go p.watch(engine, func(ctx context.Context) error { return p.startEngine(ctx, device) })
	p.mu.Lock()
	p.meshes[device], p.serves[device] = ready.Mesh, ready.Frontend
	p.frontends = append(p.frontends, ready.Frontend)
	p.mu.Unlock()
	return nil
}

// watch restarts a process that ended, if Options.Restart is set.
func (p *pod) watch(process *process, again func(context.Context) error) {
	<-process.ended
	for p.w.o.Restart {
		time.Sleep(restartAfter)
		p.mu.Lock()
		gone := p.gone
		p.mu.Unlock()
		if gone || again(context.Background()) == nil {
			return
		}
	}
}

func (p *pod) agentAddress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return ""
	}
	return p.address
}

func (p *pod) metricsAddress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.metrics
}

// living returns the pod's processes, its agent first; none if the pod was killed.
func (p *pod) living() []*process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.agent == nil {
		return nil
	}
	out := []*process{p.agent}
	for _, e := range p.engines {
		if e != nil {
			out = append(out, e)
		}
	}
	return out
}

// ended returns the processes that are not restarted.
func (p *pod) ended() []*process {
	if p.w.o.Restart {
		return nil
	}
	return p.living()
}

func (p *pod) processes() []*process {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	var out []*process
	for _, e := range p.engines {
		if e != nil {
			out = append(out, e)
		}
	}
	if p.agent != nil {
		out = append(out, p.agent)
	}
	return out
}

// stop ends the engines, then the agent.
func (p *pod) stop() {
	for _, process := range p.processes() {
		process.stop()
	}
}

// defaultStepStretch is the default of MoEDeployment (spec.transition.maxStepStretchPercent).
const defaultStepStretch = 100

func (p *pod) runAgent() (*process, error) {
	o, name := &p.w.o, fmt.Sprintf("agent-p%d", p.index)
	config := map[string]any{
		"world": o.World, "pod": fmt.Sprintf("p%d", p.index), "pod_uid": fmt.Sprintf("uid-p%d", p.index), "node": "local",
		"ranks": len(p.engines), "memory_bytes": o.Memory, "kv_bytes": o.KV, "spare_banks": o.SpareBanks, "granule_rows": o.Granule,
		"checkpoint": o.Checkpoint, "revision": o.Revision, "listen": cmp.Or(p.address, p.anyPort()), "data_listen": cmp.Or(p.data, p.anyPort()),
		"metrics_listen": p.anyPort(), "engine_socket": p.socket(), "engine_token_file": p.token(),
		"ready_file": filepath.Join(o.Dir, name+".ready"), "in_world_file": filepath.Join(o.Dir, name+".in-world"),
		"tls": p.w.cert(name), "log": map[string]any{"level": "info", "json": true},
	}
	if stretch := cmp.Or(o.MaxStepStretch, defaultStepStretch); stretch > 0 {
		config["max_step_stretch_percent"] = stretch
	}
	flags := p.faults(o.Faults)
	if o.SizesOnly {
		flags = append(flags, "--sizes-only")
	}
	if o.DescriptorBytes > 0 {
		flags = append(flags, "--descriptor-bytes", strconv.FormatUint(o.DescriptorBytes, 10))
	}
	if o.OneNode {
		config["node_socket_dir"] = p.w.socketDir
	}
	if o.CudaDriver != "" {
		config["device"], config["cuda_driver"] = "cuda", o.CudaDriver
	}
	if o.HugePages {
		config["hugetlb"] = true
	}
	if o.SlabFormat != "" {
		config["slab_format"] = o.SlabFormat
	}
	if o.Wire != "" {
		config["comm_library"] = o.Wire
	}
	if o.PageBytes > 0 {
		config["page_bytes"] = o.PageBytes
	}
	wire, err := json.MarshalIndent(config, "", " ") // JSON is YAML
	if err != nil {
		return nil, err
	}
	file := filepath.Join(o.Dir, name+".yaml")
	if err := os.WriteFile(file, wire, 0o600); err != nil {
		return nil, err
	}
	return p.run(name, o.cxx("agent/server/tangram-agent"), append(flags, "--config", file)...)
}

func (p *pod) runEngine(device int) (*process, error) {
	o, name := &p.w.o, fmt.Sprintf("engine-p%d-%d", p.index, device)
	tls := p.w.cert(fmt.Sprintf("engine-p%d", p.index))
	args := append(p.faults(o.EngineFaults),
		"--agent-socket", p.socket(), "--token-file", p.token(), "--device", fmt.Sprint(device),
		"--mesh-listen", cmp.Or(p.meshes[device], p.enginePort(forkedMesh+device)), "--serve-listen", cmp.Or(p.serves[device], p.enginePort(forkedServe+device)),
		"--advertise", p.host(),
		"--tls-ca", tls["ca"], "--tls-cert", tls["cert"], "--tls-key", tls["key"], "--max-batch-tokens", fmt.Sprint(o.Rows),
		"--max-model-len", fmt.Sprint(o.MaxTokens), "--ready-file", filepath.Join(o.Dir, name+".ready"))
	if o.Patience > 0 {
		ms := fmt.Sprint(o.Patience.Milliseconds())
		args = append(args, "--max-peer-timeout-ms", ms, "--min-peer-timeout-ms", ms)
	}
	if o.LeastStep > 0 {
		args = append(args, "--min-step-ms", fmt.Sprint(o.LeastStep.Milliseconds()))
	}
	if o.CudaDriver != "" {
		args = append(args, "--cuda-driver", o.CudaDriver)
	}
	args = append(args, o.EngineFlags...)
	args = append(args, o.PodFlags[p.index]...)
	if len(o.Engine) > 0 {
		return p.run(name, o.Engine[0], append(slices.Clone(o.Engine[1:]), args...)...)
	}
	return p.run(name, o.cxx("e2e/engine/tangram-engine"), args...)
}

func (p *pod) host() string {
	if p.w.o.Nodes {
		return nodeAddress(p.index)
	}
	return p.w.address(p.index)
}

func (p *pod) anyPort() string { return p.host() + ":0" }

// enginePort is any free port. Forked engines need fixed ports, because each gets the first one's flags, which are
// those of the pod template.
func (p *pod) enginePort(forked int) string {
	if !p.w.o.Forked {
		return p.anyPort()
	}
	return fmt.Sprintf("%s:%d", p.host(), forked)
}

// run starts a program of the pod on its node.
func (p *pod) run(name, binary string, args ...string) (*process, error) {
	if p.w.o.Nodes {
		args = append([]string{"netns", "exec", nodeName(p.index), binary}, args...)
		binary = "ip"
	}
	return startWith(p.w.cudaFiles(name), p.w.o.Dir, name, binary, args...)
}

// faults returns the flags that arm faults, in the first process only: a restarted process has none.
func (p *pod) faults(armed map[int]string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var flags []string
	if p.w.o.FaultDirs {
		flags = append(flags, "--fault-dir", p.w.FaultDir(p.index))
	}
	spec := armed[p.index]
	if spec == "" || p.address != "" && len(p.frontends) == len(p.engines) {
		return flags
	}
	return append(flags, "--faults", spec)
}

func (p *pod) socket() string { return filepath.Join(p.w.socketDir, fmt.Sprintf("p%d.sock", p.index)) }
func (p *pod) token() string  { return filepath.Join(p.w.o.Dir, fmt.Sprintf("p%d.token", p.index)) }
