package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// KillPod kills the agent and the engines of a pod together, as when its node loses power. They are not restarted;
// AddPod starts another pod. No kill waits until the kernel has removed a process.
func (w *World) KillPod(index int) {
	p := w.all()[index]
	for _, process := range p.processes() {
		process.kill()
	}
	_ = w.writeWorldFile() // on an error the file lists the dead pod a little longer
}

// Living returns the indexes of the pods that were not killed.
func (w *World) Living() []int {
	var out []int
	for i, p := range w.all() {
		if p.agentAddress() != "" {
			out = append(out, i)
		}
	}
	return out
}

// KillAgent kills a pod's agent. With Options.Restart it is restarted.
func (w *World) KillAgent(index int) { w.all()[index].agentProcess().kill() }

// KillEngine kills the engine of a pod's device. With Options.Restart it is restarted.
func (w *World) KillEngine(index, device int) {
	w.all()[index].engineProcess(device).signal(syscall.SIGKILL)
}

func (p *pod) engineProcess(device int) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engines[device]
}

// FilesOf returns the names of the files that the engine of a device has open.
func (w *World) FilesOf(index, device int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", w.all()[index].engineProcess(device).pid())
	open, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, fd := range open {
		if name, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil { // it may have been closed meanwhile
			out = append(out, name)
		}
	}
	return out, nil
}

// HangAgent stops a pod's agent with SIGSTOP, or continues it.
func (w *World) HangAgent(index int, hung bool) { w.all()[index].agentProcess().hangs(hung) }

// HangEngine stops the engine of a pod's device with SIGSTOP, or continues it.
func (w *World) HangEngine(index, device int, hung bool) {
	w.all()[index].engineProcess(device).hangs(hung)
}

func (p *process) hangs(hung bool) {
	if hung {
		p.hang()
	} else {
		p.wake()
	}
}

func (p *pod) agentProcess() *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.agent
}

// AddPod starts a pod with this many ranks and returns its index.
func (w *World) AddPod(ctx context.Context, ranks int) (int, error) {
	w.mu.Lock()
	p := &pod{w: w, index: len(w.pods), engines: make([]*process, ranks), meshes: make([]string, ranks), serves: make([]string, ranks)}
	w.pods = append(w.pods, p)
	w.mu.Unlock()
	if err := w.Certificates(ctx, w.certs, rolesOf(p.index)...); err != nil {
		return p.index, err
	}
	return p.index, p.start(ctx)
}

// Did is an action of a keeper (tangram-driver run).
type Did struct {
	Did    string      `json:"did"`
	At     time.Time   `json:"at"`
	Record *KeptRecord `json:"record"`
	Error  string      `json:"error"`
}

// KeptRecord is the record of a repair or an apply.
type KeptRecord struct {
	Record
	Kind         string   `json:"kind"`
	WorldEnded   string   `json:"world_ended"` // why the world ended; empty: it did not
	Lost         []Lost   `json:"lost"`
	Missed       []Missed `json:"missed"`
	WaitSeconds  float64  `json:"wait_seconds"` // until the survivors were stopped
	FenceSeconds float64  `json:"fence_seconds"`
}

// Lost is a member that a repair removed.
type Lost struct {
	Member string `json:"member"`
	Why    string `json:"why"`
}

// Missed is an engine's reason for abandoning its step: the failure of another member's engine.
type Missed struct {
	By     string `json:"by"`
	Member string `json:"member"`
	Cause  string `json:"cause"`
	Doing  string `json:"doing"`
	Layer  uint32 `json:"layer"`
}

// Text returns the text that the engine logs.
func (m Missed) Text() string {
	text := m.Member + " " + strings.ReplaceAll(m.Cause, "_", " ") + " in " + m.Doing
	if m.Doing == "dispatch" || m.Doing == "combine" {
		text += fmt.Sprintf(" of layer %d", m.Layer)
	}
	return text
}

// Keeper is a running `tangram-driver run`.
type Keeper struct {
	process *exec.Cmd
	mu      sync.Mutex
	did     []Did
	done    chan struct{}
}

// Keep starts a keeper of this shape, which passes its actions to `each`, too.
func (w *World) Keep(ranks int, mode string, each func(Did)) (*Keeper, error) {
	return w.keep(ranks, mode, nil, nil, each)
}

// KeepHybrid starts a keeper of a world in mode Hybrid with the layer shapes `layers`, each FIRST[-LAST]=g/t.
func (w *World) KeepHybrid(ranks int, layers []string, each func(Did)) (*Keeper, error) {
	return w.keep(ranks, "Hybrid", layers, nil, each)
}

// KeepPlacement starts a keeper of a placement (ApplyPlacement).
func (w *World) KeepPlacement(ranks int, placement [][][]uint32, each func(Did)) (*Keeper, error) {
	return w.keep(ranks, "ExpertParallel", nil, placement, each)
}

func (w *World) keep(ranks int, mode string, layers []string, placement [][][]uint32, each func(Did)) (*Keeper, error) {
	shape, err := w.shape(ranks, mode, layers, placement)
	if err != nil {
		return nil, err
	}
	if w.o.Reattach > 0 {
		shape = append(shape, "--reattach-timeout", w.o.Reattach.String())
	}
	log := &logFile{path: w.o.Dir + "/keep.log"}
	cmd := exec.Command(w.o.tool("tangram-driver"), append([]string{"run", "--agents-file", w.agentsFile}, shape...)...)
	cmd.SysProcAttr = dieWithParent()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k := &Keeper{process: cmd, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		lines := json.NewDecoder(out)
		for {
			var did Did
			if lines.Decode(&did) != nil { // end of the output
				break
			}
			k.mu.Lock()
			k.did = append(k.did, did)
			k.mu.Unlock()
			if each != nil {
				each(did)
			}
		}
		_ = cmd.Wait() // it was killed or interrupted
	}()
	return k, nil
}

// Did returns the actions so far.
func (k *Keeper) Did() []Did {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]Did(nil), k.did...)
}

// Kill kills the keeper with SIGKILL.
func (k *Keeper) Kill() {
	_ = k.process.Process.Kill() // it may have ended
	<-k.done
}

// Await waits for a matching action of the keeper, past or future.
func (k *Keeper) Await(ctx context.Context, what string, is func(Did) bool) (Did, error) {
	for {
		for _, d := range k.Did() {
			if d.Record != nil && is(d) {
				return d, nil
			}
		}
		select {
		case <-ctx.Done():
			return Did{}, fmt.Errorf("the keeper did not get as far as %s: %w", what, ctx.Err())
		case <-k.done:
			return Did{}, fmt.Errorf("the keeper ended before %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
