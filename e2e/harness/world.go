package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Options of a world. Zero values get the demo's.
type Options struct {
	Root       string // of the repository
	Dir        string // for this world's files; made anew
	World      string
	Checkpoint string
	Revision   string
	Pods       []int // ranks of each pod
	Memory     uint64
	KV         uint64
	SpareBanks int
	Granule    int
	MaxTokens  int            // of a request, prompt and answer
	Faults     map[int]string // TANGRAM_FAULTS of the agents of these pods
}

// World of running processes.
type World struct {
	o          Options
	certs      string
	socketDir  string
	agents     []*process
	engines    []*process
	gateway    *process
	addresses  []string
	frontends  []string
	gatewayURL string
	file       string
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
	if o.Memory == 0 {
		o.Memory = 512 << 20
	}
	if o.KV == 0 {
		o.KV = 64 << 20
	}
	if o.SpareBanks == 0 {
		o.SpareBanks = 3 // the six layers of the demo change sharding in two flips
	}
	if o.Granule == 0 {
		o.Granule = 16
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 512
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

// Start brings all processes up; no layout is in force yet. On an error nothing is left running.
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
	w = &World{o: o, certs: filepath.Join(o.Dir, "certs"), file: filepath.Join(o.Dir, "world.json")}
	defer func() {
		if err != nil {
			w.Stop()
			w = nil
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return w, err
	}
	// The path of a UNIX socket is short.
	if w.socketDir, err = os.MkdirTemp("", "tangram"); err != nil {
		return w, err
	}
	roles := []string{"driver", "gateway"}
	for i := range o.Pods {
		roles = append(roles, fmt.Sprintf("agent/p%d", i), fmt.Sprintf("engine/p%d", i))
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
	return w, w.startGateway(ctx)
}

func (w *World) startPods(ctx context.Context) error {
	w.agents = make([]*process, len(w.o.Pods))
	w.addresses = make([]string, len(w.o.Pods))
	perPod := make([][]string, len(w.o.Pods))
	var mu sync.Mutex
	errs := make([]error, len(w.o.Pods))
	var wait sync.WaitGroup
	for i, ranks := range w.o.Pods {
		wait.Go(func() {
			errs[i] = func() error {
				agent, err := w.startAgent(i, ranks)
				if err != nil {
					return err
				}
				w.agents[i] = agent
				var ready struct {
					Agent string `json:"agent"`
				}
				if err := agent.waitReady(ctx, &ready); err != nil {
					return err
				}
				w.addresses[i] = ready.Agent
				for device := range ranks {
					engine, err := w.startEngine(i, device)
					if err != nil {
						return err
					}
					mu.Lock()
					w.engines = append(w.engines, engine)
					mu.Unlock()
					var ready struct {
						Frontend string `json:"frontend"`
					}
					if err := engine.waitReady(ctx, &ready); err != nil {
						return err
					}
					perPod[i] = append(perPod[i], ready.Frontend)
				}
				return nil
			}()
		})
	}
	wait.Wait()
	for _, f := range perPod {
		w.frontends = append(w.frontends, f...)
	}
	return errors.Join(errs...)
}

// Certificates writes certificates of this world's name for roles into dir, by the
// authority that is there, or by a new one.
func (w *World) Certificates(ctx context.Context, dir string, roles ...string) error {
	args := append([]string{"certificates", "--dir", dir, "--world", w.o.World}, roles...)
	if out, err := exec.CommandContext(ctx, w.o.tool("tangram-driver"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("certificates: %w: %s", err, out)
	}
	return nil
}

// CertificateDir holds ca.crt and, by role, NAME.crt and NAME.key ("agent-p0.crt").
func (w *World) CertificateDir() string { return w.certs }

func (w *World) cert(name string) map[string]string {
	return map[string]string{"ca": filepath.Join(w.certs, "ca.crt"), "cert": filepath.Join(w.certs, name+".crt"), "key": filepath.Join(w.certs, name+".key")}
}

func (w *World) startAgent(i, ranks int) (*process, error) {
	name := fmt.Sprintf("agent-p%d", i)
	config := map[string]any{
		"world": w.o.World, "pod": fmt.Sprintf("p%d", i), "pod_uid": fmt.Sprintf("uid-p%d", i), "node": "local", "ranks": ranks,
		"memory_bytes": w.o.Memory, "kv_bytes": w.o.KV, "spare_banks": w.o.SpareBanks, "granule_rows": w.o.Granule,
		"checkpoint": w.o.Checkpoint, "revision": w.o.Revision, "listen": "127.0.0.1:0", "data_listen": "127.0.0.1:0",
		"metrics_listen": "127.0.0.1:0", "engine_socket": filepath.Join(w.socketDir, fmt.Sprintf("p%d.sock", i)),
		"engine_token_file": filepath.Join(w.o.Dir, fmt.Sprintf("p%d.token", i)), "ready_file": filepath.Join(w.o.Dir, name+".ready"),
		"tls": w.cert(name), "log": map[string]any{"level": "info", "json": true},
	}
	wire, err := json.MarshalIndent(config, "", " ") // JSON is YAML
	if err != nil {
		return nil, err
	}
	file := filepath.Join(w.o.Dir, name+".yaml")
	if err := os.WriteFile(file, wire, 0o600); err != nil {
		return nil, err
	}
	var env []string
	if faults := w.o.Faults[i]; faults != "" {
		env = []string{"TANGRAM_FAULTS=" + faults}
	}
	return start(w.o.Dir, name, env, w.o.cxx("agent/server/tangram-agent"), "--config", file)
}

func (w *World) startEngine(pod, device int) (*process, error) {
	name := fmt.Sprintf("engine-p%d-%d", pod, device)
	tls := w.cert(fmt.Sprintf("engine-p%d", pod))
	return start(w.o.Dir, name, nil, w.o.cxx("e2e/engine/tangram-engine"),
		"--agent-socket", filepath.Join(w.socketDir, fmt.Sprintf("p%d.sock", pod)), "--token-file", filepath.Join(w.o.Dir, fmt.Sprintf("p%d.token", pod)),
		"--device", fmt.Sprint(device), "--mesh-listen", "127.0.0.1:0", "--serve-listen", "127.0.0.1:0", "--advertise", "127.0.0.1",
		"--tls-ca", tls["ca"], "--tls-cert", tls["cert"], "--tls-key", tls["key"], "--max-batch-tokens", "24", "--max-model-len", fmt.Sprint(w.o.MaxTokens),
		"--ready-file", filepath.Join(w.o.Dir, name+".ready"))
}

func (w *World) writeWorldFile() error {
	wire, err := json.MarshalIndent(map[string]any{"world": w.o.World, "agents": w.addresses,
		"store": filepath.Join(w.o.Dir, "store.json"), "tls": w.cert("driver")}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(w.file, wire, 0o600)
}

func (w *World) startGateway(ctx context.Context) error {
	tls := w.cert("gateway")
	args := []string{"--world", w.o.World, "--listen", "127.0.0.1:0", "--model", w.o.World, "--tls-ca", tls["ca"], "--tls-cert", tls["cert"],
		"--tls-key", tls["key"], "--ready-file", filepath.Join(w.o.Dir, "gateway.ready")}
	for _, f := range w.frontends {
		args = append(args, "--seed", f)
	}
	gateway, err := start(w.o.Dir, "gateway", nil, w.o.tool("tangram-gateway"), args...)
	if err != nil {
		return err
	}
	w.gateway = gateway
	var ready struct {
		Address string `json:"address"`
	}
	if err := gateway.waitReady(ctx, &ready); err != nil {
		return err
	}
	w.gatewayURL = "http://" + ready.Address
	return nil
}

// URL of the gateway.
func (w *World) URL() string { return w.gatewayURL }

// Model is the name that the gateway gives it.
func (w *World) Model() string { return w.o.World }

// Dir of the files and logs.
func (w *World) Dir() string { return w.o.Dir }

// Agents are the addresses of the control services, by pod.
func (w *World) Agents() []string { return w.addresses }

// Stop ends what Start started. It may be called twice.
func (w *World) Stop() {
	var wait sync.WaitGroup
	for _, group := range [][]*process{{w.gateway}, w.engines, w.agents} {
		for _, p := range group {
			if p != nil {
				wait.Go(p.stop)
			}
		}
		wait.Wait()
	}
	w.gateway, w.engines, w.agents = nil, nil, nil
	if w.socketDir != "" {
		_ = os.RemoveAll(w.socketDir) // left over files harm nobody
	}
}

// Died names a process that ended by itself, or nothing.
func (w *World) Died() string {
	for _, group := range [][]*process{{w.gateway}, w.engines, w.agents} {
		for _, p := range group {
			if p == nil {
				continue
			}
			select {
			case <-p.ended:
				return fmt.Sprintf("%s: %v; the end of its log:\n%s", p.name, p.err, tail(p.log, 10))
			default:
			}
		}
	}
	return ""
}

// Pods of 2 ranks, the last of 1 if need be.
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
