package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/layout"
)

// hugePage is the unit of GPU memory.
const hugePage = 2 << 20

type sizeFlags struct {
	model, engine, accelerator, claim, path, name, memory, mode string
	ranks, least, most, podSize                                 int
	spareBanks                                                  uint32
	kvTokens, denseBytes                                        uint64
}

func sizeCommand() *cobra.Command {
	f := sizeFlags{}
	c := &cobra.Command{
		Use:   "size",
		Short: "Print a MoEDeployment for a model, with the memory that each rank needs",
		Long: `Prints a complete MoEDeployment for a model on a number of ranks. Its comments list the memory budget of a rank, in GB.
The planner computes the budget. It covers each transition between --min-ranks, --ranks and --max-ranks in the modes of --mode.
It also covers the repair after the loss of any rank.

--memory is the memory per rank for weights and KV cache: the device memory minus the memory for activations and graphs of the engine.
Without --memory, the KV cache is sized for --kv-tokens.`,
		Example: "  tangram size --model ./Qwen3-30B-A3B --ranks 4 --memory 70Gi | kubectl apply -f -\n" +
			"  tangram size --model Qwen3-235B-A22B --dense-bytes 17000000000 --ranks 8 --max-ranks 16 --memory 120Gi",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.OutOrStdout()) },
	}
	fs := c.Flags()
	fs.StringVar(&f.model, "model", "", "folder of the checkpoint, its config.json, or the name of a public model, e.g. Qwen3-30B-A3B")
	fs.IntVar(&f.ranks, "ranks", 0, "number of ranks")
	fs.IntVar(&f.least, "min-ranks", 0, "minimum number of ranks; 0: the value of --ranks")
	fs.IntVar(&f.most, "max-ranks", 0, "maximum number of ranks; 0: the value of --ranks")
	fs.IntVar(&f.podSize, "ranks-per-pod", 1, "number of ranks per pod")
	fs.StringVar(&f.memory, "memory", "", "memory per rank for weights and KV cache, e.g. 70Gi; empty: enough for the weights and --kv-tokens")
	fs.Uint64Var(&f.kvTokens, "kv-tokens", 65536, "number of tokens in the KV cache of a rank; used only without --memory")
	fs.StringVar(&f.mode, "mode", "Both", "modes that the world can use: ExpertParallel, TensorParallel or Both")
	fs.Uint32Var(&f.spareBanks, "spare-banks", 2, "number of layers that one flip can change")
	fs.Uint64Var(&f.denseBytes, "dense-bytes", 0, "size of the weights outside the routed experts, in bytes; 0: read from the safetensors files of --model")
	fs.StringVar(&f.accelerator, "accelerator", "NVIDIA", "device for weights and KV cache: NVIDIA, or None for the memory of the pods")
	fs.StringVar(&f.engine, "engine", "vllm", "engine: vllm or reference")
	fs.StringVar(&f.name, "name", "", "name of the MoEDeployment; empty: derived from --model")
	fs.StringVar(&f.claim, "claim", "checkpoints", "name of the PersistentVolumeClaim with the checkpoint")
	fs.StringVar(&f.path, "path", "", "folder of the checkpoint in the claim; empty: the name of --model")
	required(c, "model")
	required(c, "ranks")
	return c
}

// modes returns the modes of --mode.
func (f *sizeFlags) modes() ([]layout.Mode, error) {
	if f.mode == "Both" {
		return []layout.Mode{layout.Expert, layout.Tensor}, nil
	}
	m, err := layout.ParseMode(f.mode)
	if err != nil || m == layout.Hybrid {
		return nil, fmt.Errorf("--mode is %q; want ExpertParallel, TensorParallel or Both", f.mode)
	}
	return []layout.Mode{m}, nil
}

// widths returns the widths of the world, ascending.
func (f *sizeFlags) widths() ([]int, error) {
	if f.ranks < 1 || f.podSize < 1 {
		return nil, fmt.Errorf("--ranks is %d and --ranks-per-pod is %d; want at least 1 each", f.ranks, f.podSize)
	}
	low, high := cmp.Or(f.least, f.ranks), cmp.Or(f.most, f.ranks)
	if low < 1 || f.ranks < low || f.ranks > high {
		return nil, fmt.Errorf("--ranks is %d; want a number between --min-ranks %d and --max-ranks %d", f.ranks, low, high)
	}
	for _, n := range []int{low, f.ranks, high} {
		if n%f.podSize != 0 {
			return nil, fmt.Errorf("%d ranks do not fill a whole number of pods; want a multiple of --ranks-per-pod %d", n, f.podSize)
		}
	}
	return plancli.WidthsBetween(low/f.podSize, f.ranks/f.podSize, high/f.podSize, f.podSize), nil
}

var manifest = template.Must(template.New("manifest").Parse(`# Memory per rank of {{.Model}}, in GB, for {{.For}}:
{{- range .Items}}
#   {{printf "%8.2f" .GB}}  {{.Name}}
{{- end}}
#   {{printf "%8.2f" .GB}}  in total; the KV cache holds {{.KVTokens}} tokens in ExpertParallel mode
apiVersion: serving.tangram.dev/v1alpha2
kind: MoEDeployment
metadata:
  name: {{.Name}}
spec:
  replicas: {{.Replicas}}
{{- if .Bounded}}
  minReplicas: {{.Min}}
  maxReplicas: {{.Max}}
{{- end}}
{{- if ne .PodSize 1}}
  ranksPerPod: {{.PodSize}}
{{- end}}
{{- if eq .Mode "TensorParallel"}}
  parallelism:
    mode: TensorParallel
{{- end}}
  model:
    source:
      persistentVolumeClaim:
        claimName: {{.Claim}}
        path: {{.Path}}
  engine:
    name: {{.Engine}}
{{- if eq .Accelerator "NVIDIA"}}
  accelerator:
    type: NVIDIA
{{- end}}
  memory:
    weights: {{.Weights}}
    kvCache: {{.KV}}
  tuning:
    granuleRows: {{.Rows}}
    spareBanks: {{.SpareBanks}}
{{- if eq .Accelerator "NVIDIA"}}
    handleSize: {{.Handle}}
{{- end}}
`))

func (f *sizeFlags) run(out io.Writer) error {
	modes, err := f.modes()
	if err != nil {
		return err
	}
	widths, err := f.widths()
	if err != nil {
		return err
	}
	if f.engine != "vllm" && f.engine != "reference" {
		return fmt.Errorf("--engine is %q; want vllm or reference", f.engine)
	}
	pages := uint64(4096)
	switch f.accelerator {
	case "NVIDIA":
		pages = hugePage
	case "None":
	default:
		return fmt.Errorf("--accelerator is %q; want NVIDIA or None", f.accelerator)
	}
	var memory uint64
	if f.memory != "" {
		q, err := resource.ParseQuantity(f.memory)
		if err != nil || q.Sign() <= 0 {
			return fmt.Errorf("--memory is %q; want a positive amount, e.g. 70Gi", f.memory)
		}
		memory = uint64(q.Value())
	}
	r, err := plancli.SizeCheckpoint(f.model, 0, pages, f.denseBytes, plancli.SizeInput{Widths: widths, RanksPerPod: f.podSize, SpareBanks: f.spareBanks, Modes: modes,
		MemoryBytes: memory, KVTokens: f.kvTokens})
	if err != nil {
		return err
	}
	base := strings.TrimSuffix(filepath.Base(strings.TrimSuffix(f.model, "/config.json")), "/")
	data := map[string]any{"Model": r.Model, "Name": objectName(f.name, base), "Replicas": f.ranks / f.podSize, "Min": widths[0] / f.podSize, "Max": widths[len(widths)-1] / f.podSize,
		"Bounded": len(widths) > 1, "PodSize": f.podSize, "Mode": f.mode, "Claim": f.claim, "Path": cmp.Or(f.path, base), "Engine": f.engine, "Weights": mebibytes(r.WeightsBytes),
		"KV": mebibytes(r.KVBytes), "Rows": r.GranuleRows, "SpareBanks": f.spareBanks, "Accelerator": f.accelerator, "Handle": mebibytes((r.ExpertBytes + hugePage - 1) / hugePage * hugePage), "KVTokens": r.KVTokens, "GB": float64(r.WeightsBytes+r.KVBytes) / 1e9}
	var names []string
	for _, m := range modes {
		names = append(names, m.String())
	}
	ranks := fmt.Sprintf("%d ranks", widths[0])
	switch {
	case len(widths) == 1 && widths[0] == 1:
		ranks = "one rank"
	case len(widths) > 1:
		ranks = fmt.Sprintf("%d to %d ranks", widths[0], widths[len(widths)-1])
	}
	data["For"] = ranks + " in " + strings.Join(names, " or ") + " mode"
	type line struct {
		Name string
		GB   float64
	}
	var lines []line
	for _, i := range r.Items {
		lines = append(lines, line{i.Name, float64(i.Bytes) / 1e9})
	}
	data["Items"] = lines
	var text bytes.Buffer
	if err := manifest.Execute(&text, data); err != nil {
		return err
	}
	_, err = out.Write(text.Bytes())
	return err
}

func mebibytes(n uint64) string { return fmt.Sprintf("%dMi", n>>20) }

// objectName returns the name of a MoEDeployment: at most 40 lower-case letters, digits, hyphens; a letter first.
func objectName(given, model string) string {
	if given != "" {
		return given
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, model)
	if name = strings.Trim(name, "-"); name == "" || name[0] < 'a' {
		name = "model-" + name
	}
	return strings.Trim(name[:min(len(name), 40)], "-")
}
