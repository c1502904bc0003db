package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func call(in string, args ...string) (int, string, string) {
	var out, errs bytes.Buffer
	code := run(args, strings.NewReader(in), &out, &errs)
	return code, out.String(), errs.String()
}

const small = `{"tangram_load":1,"windows":[[[4,1,1,2],[1,1,1,1]]]}`

// Two modes and the policy on a generated load: the table has a row for each, and JSON is the same in two runs.
func TestSimulate(t *testing.T) {
	flags := []string{"simulate", "--rates", "20x5,5x40", "--prompt", "500", "--answer", "60", "--policy", "ExpertParallel,TensorParallel,calibrated"}
	code, out, errs := call("", flags...)
	require.Zero(t, code, errs)
	for _, want := range []string{"ExpertParallel  ", "TensorParallel  ", "calibrated  ", "TTFT p50 s"} {
		require.Contains(t, out, want)
	}
	_, first, _ := call("", append(flags, "-o", "json")...)
	_, second, _ := call("", append(flags, "-o", "json")...)
	require.Equal(t, first, second)
	var report struct {
		Policies []struct {
			Policy       string
			Requests     int
			OutputTokens uint64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(first), &report))
	rows := report.Policies
	require.Len(t, rows, 3)
	for _, r := range rows {
		require.Equal(t, rows[0].Requests, r.Requests)
		require.Equal(t, rows[0].OutputTokens, r.OutputTokens)
	}
	code, out, errs = call("100 20\n200 30\n", "simulate", "--trace", "-", "--policy", "TensorParallel")
	require.Zero(t, code, errs)
	require.Contains(t, out, "TensorParallel         2")
	code, out, errs = call("100 20\n100 0\n200 30\n", "simulate", "--trace", "-", "--policy", "TensorParallel")
	require.Zero(t, code, errs)
	require.Contains(t, out, "TensorParallel         2")
	require.Contains(t, errs, "--trace -: 1 lines skipped, because they have no prompt tokens or no output tokens")
}

func TestBadSimulations(t *testing.T) {
	for want, flags := range map[string][]string{
		"found 0 of --trace, --rates and --rollout; set exactly one of them": {},
		"--rollout is -1; want 1 to 1,000,000":                               {"--rollout", "-1"},
		"no such file":                                                       {"--trace", "none.csv"},
		"want SECONDSxREQUESTS_PER_SECOND":                                   {"--rates", "5"},
		"with at most 10 million requests":                                   {"--rates", "1e6x1e6"},
		"--noise is NaN":                                                     {"--rates", "5x5", "--noise", "NaN"},
		"invalid SLO: TTFT -1 s":                                             {"--rates", "5x5", "--ttft", "-1"},
		"--times is 0":                                                       {"--rates", "5x5", "--times", "0"},
		"no measured kernels for --model \"gpt-2\"; want one of Qwen3-235B-A22B, Qwen3-30B-A3B": {"--rates", "5x5", "--model", "gpt-2"},
		"no measured kernels for --truth \"llama.cpp\"; want one of sglang, trtllm, vllm":       {"--rates", "5x5", "--truth", "llama.cpp"},
		"--prior \"llama.cpp\"":                                                         {"--rates", "5x5", "--prior", "llama.cpp"},
		"no measured kernels for --routing \"fair\"; want one of":                       {"--rates", "5x5", "--routing", "fair"},
		"--policy is \"expert\"; want one of ExpertParallel, TensorParallel, threshold": {"--rates", "5x5", "--policy", "ExpertParallel,expert"},
		"--policy is empty":                                                             {"--rates", "5x5", "--policy", ""},
		"--concurrency is -1; want at least 1":                                          {"--rates", "5x5", "--concurrency", "-1"},
		"found --samples with -o table":                                                 {"--rates", "5x5", "--samples"},
		"--output is \"xml\"":                                                           {"--rates", "5x5", "-o", "xml"},
		"--ranks is 9; want 1 to 8, the measured numbers of ranks":                      {"--rates", "5x5", "--ranks", "9"},
		"--ranks is 0; want 1 to 8, the measured numbers of ranks":                      {"--rates", "5x5", "--ranks", "0"},
		"leaves no memory for the KV cache on a rank of 80.00 GB: use more ranks or more memory per rank (experts 56.77 GB, dense weights ": {"--rates", "5x5", "--rank-gb", "80"},
		"want one of ExpertParallel, TensorParallel": {"--rates", "5x5", "--policy", "magic"},
		"--svg: open none/a.svg":                     {"--rates", "5x5", "--svg", "none/a.svg"},
		"want mooncake, azure or rollout":            {"--trace", "-", "--format", "xml"},
		"--trace -: trace is empty":                  {"--trace", "-"},
		"--trace -: line 1: \"a\"; want two numbers": {"--trace", "-", "--format", "rollout"},
	} {
		in := ""
		if strings.Contains(want, "line 1") {
			in = "a\n"
		}
		code, _, errs := call(in, append([]string{"simulate"}, flags...)...)
		require.Equal(t, 2, code, "%s: %s", want, errs)
		require.Contains(t, errs, want)
	}
}

func TestBadInput(t *testing.T) {
	balance := func(flags ...string) []string { return append([]string{"balance", "--load", "-"}, flags...) }
	plan := func(flags ...string) []string {
		return append([]string{"plan", "--geometry", "Mixtral-8x7B"}, flags...)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	deployment := func(spec string) string {
		return file(strings.Trim(spec, "{}")+".yaml", "apiVersion: serving.tangram.dev/v1alpha2\nkind: MoEDeployment\nmetadata: {name: d}\nspec: "+spec+"\n")
	}
	for _, c := range []struct {
		name, in, want string
		args           []string
	}{
		{"an unknown command", "", `unknown command "fly" for "tangram"; see tangram --help`, []string{"fly"}},
		{"an unknown flag", "", "unknown flag: --wings; see tangram plan --help", []string{"plan", "--wings"}},
		{"an argument", "", `tangram plan takes only flags, found argument "x"; see tangram plan --help`, []string{"plan", "x"}},
		{"no flags", "", `"load", "ranks" not set; see tangram balance --help`, []string{"balance"}},
		{"no file", "", "no such file", []string{"balance", "--load", filepath.Join(dir, "none"), "--ranks", "2"}},
		{"a format", small, `unknown format "xml"; want auto, vllm, sglang, ascend, json, csv`, balance("--ranks", "2", "--format", "xml")},
		{"a format that nothing tells", `{"loads": []}`, "match none of the formats vllm, sglang, ascend, json, csv; set the format of the file", balance("--ranks", "2")},
		{"two formats", `{"load_history":[],"logical_count":[]}`, "match the formats vllm and sglang", balance("--ranks", "2")},
		{"a negative load", `{"tangram_load":1,"windows":[[[4,-1]]]}`, "-: load JSON: line 1, windows[0][0][1]: load is -1", balance("--ranks", "2")},
		{"NaN", "window,layer,expert,tokens\n0,0,0,1\n0,0,1,NaN\n", "line 3, column tokens: load is NaN", balance("--ranks", "2")},
		{"a hole", `{"load_history":[{"logical_expert_load":[[1,null]]}]}`, "logical_expert_load[0][1]: a hole", balance("--ranks", "2")},
		{"a missing line", "window,layer,expert,tokens\n0,0,0,1\n0,0,2,1\n", "no line for window 0, layer 0, expert 1", balance("--ranks", "2")},
		{"more ranks than slots", small, "4 experts and 0 redundant experts do not fill 6 ranks; use at least 2 redundant experts", balance("--ranks", "6")},
		{"too few slots", small, "1 slots on each of 2 ranks cannot hold one replica of each of 4 experts; use at least 2 slots", balance("--ranks", "2", "--slots", "1")},
		{"no ranks", small, "number of ranks is 0; want at least 1", balance("--ranks", "0")},
		{"nodes", small, "number of nodes is 5; want 1 to 4", balance("--ranks", "4", "--nodes", "5")},
		{"groups", small, "number of groups is 3; want a divisor of the number of experts, 4", balance("--ranks", "4", "--groups", "3")},
		{"a negative number", small, "a maximum of -1 moves", balance("--ranks", "4", "--max-moves", "-1")},
		{"slots and redundant experts", small, "set one of them", balance("--ranks", "2", "--slots", "2", "--redundant-experts", "1")},
		{"a mode", small, `--mode is "half"; want full or incremental`, balance("--ranks", "2", "--mode", "half")},
		{"a price", small, "the price of a moved slot is -1", balance("--ranks", "2", "--price", "-1")},
		{"an output", small, `--output is "xml"; want one of table, json, yaml`, balance("--ranks", "2", "-o", "xml")},
		{"a demand", small, `--demand: demand is "most"`, balance("--ranks", "2", "--demand", "most")},
		{"windows of none", small, "--every: load: every 0 windows", balance("--ranks", "2", "--every", "0")},
		{"no such layer", small, "--first-layer is 2; want 0 to 1, the layers of -", balance("--ranks", "2", "--first-layer", "2")},
		{"an old placement with a hole", small, "expert 3 of 4 has no slot on any rank", balance("--ranks", "2", "--old", file("hole", `[[[0,1],[2]],[[0,1],[2,3]]]`))},
		{"an old placement of another model", small, "1 layers; the model has 2 MoE layers", balance("--ranks", "2", "--old", file("other", `[[[0,1],[2,3]]]`))},
		{"costs without a curve", small, "set --budget-curve", balance("--ranks", "2", "--kv-blocks", "3")},
		{"half of the costs", small, "found 1 of 7 cost flags", balance("--ranks", "2", "--budget-curve", "4", "--kv-blocks", "3")},
		{"a curve of nothing", small, "--budget-curve is -1", balance("--ranks", "2", "--budget-curve", "-1")},
		{"no world", "", "no target: set -f or --ranks", plan()},
		{"no rank", "", "number of ranks is 0; want 1 to 8192", plan("--ranks", "0")},
		{"too many ranks", "", "at most 8 ranks can share them", plan("--ranks", "9")},
		{"a wanted mode", "", `unknown mode "Diagonal"`, plan("--ranks", "2", "--mode", "Diagonal")},
		{"a mode as it is", "", `--from-mode: unknown mode "Mixed"`, plan("--ranks", "2", "--from-mode", "Mixed", "--from-ranks", "2")},
		{"ranks as they are", "", "--from-ranks is -1", plan("--ranks", "2", "--from-ranks", "-1")},
		{"redundant experts of no load", "", "set --load", plan("--ranks", "2", "--redundant-experts", "1")},
		{"a load of another model", small, "load has 2 layers of 4 experts; want 32 MoE layers of 8 experts, as Mixtral-8x7B has", plan("--ranks", "2", "--load", "-")},
		{"a load for slices", small, "experts are placed by load only in ExpertParallel mode", plan("--ranks", "2", "--mode", "TensorParallel", "--load", "-")},
		{"an old placement of no world", "", "set --from-ranks", plan("--ranks", "1", "--old", file("p", "[[["+"0,1,2,3,4,5,6,7]]"+strings.Repeat(",[[0,1,2,3,4,5,6,7]]", 31)+"]"))},
		{"an unknown geometry", "", `no config.json at that path, and "none" is no public model`, []string{"plan", "--geometry", "none", "--ranks", "1"}},
		{"a geometry of another kind", "", `model_type "llama" is not supported`, []string{"plan", "--geometry", file("c.json", `{"model_type":"llama"}`), "--ranks", "1"}},
		{"an unknown field", "", `line 4: unknown field "spec.replica"`, plan("-f", deployment("{replica: 2}"))},
		{"another kind", "", "want a MoEDeployment", plan("-f", file("k.yaml", "kind: Pod\n"))},
		{"a negative width", "", "spec.replicas is -1", plan("-f", deployment("{replicas: -1}"))},
		{"a hybrid by flags", "", "mode Hybrid needs layers", plan("--ranks", "2", "--mode", "Hybrid")},
		{"groups that do not divide", "", "layers 0 to the last: expert groups of 2 do not divide 3 ranks", plan("-f", deployment("{replicas: 3, parallelism: {layers: [{expertGroup: 2}]}}"))},
		{"layers that are not", "", "layers 40 to the last: the model has 32 layers", plan("-f", deployment("{replicas: 2, parallelism: {layers: [{firstLayer: 40}]}}"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := call(c.in, c.args...)
			require.Equal(t, 2, code, errs)
			require.Contains(t, errs, c.want)
			require.Empty(t, out)
		})
	}
}

// A plan from the hybrid in the status to the one in the spec.
func TestPlan_WhenBothLayoutsAreHybrid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: serving.tangram.dev/v1alpha2
kind: MoEDeployment
spec: {replicas: 4, parallelism: {layers: [{lastLayer: 9, expertGroup: All, attentionGroup: 2}]}}
status: {ranks: 4, mode: Hybrid, layers: [{firstLayer: 0, lastLayer: 31, expertGroup: 2, attentionGroup: 1}]}
`), 0o600))
	code, out, errs := call("", "plan", "--geometry", "Mixtral-8x7B", "-f", path)
	require.Zero(t, code, errs)
	require.Contains(t, out, "Hybrid (0-31=2/1) on 4 ranks -> Hybrid (0-9=all/2) on 4 ranks")
	same := strings.NewReplacer("lastLayer: 9, expertGroup: All, attentionGroup: 2", "expertGroup: 2")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(same.Replace(string(text))), 0o600))
	code, out, errs = call("", "plan", "--geometry", "Mixtral-8x7B", "-f", path)
	require.Zero(t, code, errs)
	require.Contains(t, out, "no changes: the active layout is the target layout")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestBalance_WhenOutputCannotBeWritten(t *testing.T) {
	var errs bytes.Buffer
	require.Equal(t, 1, run([]string{"balance", "--load", "-", "--ranks", "2"}, strings.NewReader(small), full{}, &errs))
	require.Contains(t, errs.String(), "the disk is full")
}

// A written placement is the active one of the next run: no expert moves, and a plan from it has no bytes.
func TestPlacementFileRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.json")
	loads := `{"logical_count":[` + strings.Repeat("[9,4,1,1,1,1,1,2],", 31) + "[9,4,1,1,1,1,1,2]]}"
	code, out, errs := call(loads, "balance", "--load", "-", "--ranks", "2", "--redundant-experts", "2", "--placement-file", path, "-o", "json")
	require.Zero(t, code, errs)
	var report struct {
		Moves     int
		Placement [][][]int
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Positive(t, report.Moves)
	wire, err := os.ReadFile(path)
	require.NoError(t, err)
	var written [][][]int
	require.NoError(t, json.Unmarshal(wire, &written))
	require.Equal(t, report.Placement, written)

	code, out, errs = call(loads, "balance", "--load", "-", "--ranks", "2", "--redundant-experts", "2", "--old", path, "--price", "0.0001")
	require.Zero(t, code, errs)
	require.Contains(t, out, "no move is worth its price")
	code, out, errs = call(loads, "plan", "--geometry", "Mixtral-8x7B", "--from-ranks", "2", "--ranks", "2", "--old", path, "--load", "-", "--redundant-experts", "2", "--price", "0.0001")
	require.Zero(t, code, errs)
	require.Contains(t, out, "no changes: the active layout is the target layout")
	require.Contains(t, out, "load: the last of 1 windows")
}

// In mode Auto the mode is the operator's decision.
func TestPlan_WhenOperatorChoosesMode(t *testing.T) {
	const auto = "apiVersion: serving.tangram.dev/v1alpha2\nkind: MoEDeployment\nspec: {replicas: 4, parallelism: {mode: Auto}, ranksPerPod: 1, tuning: {spareBanks: 3, granuleRows: 96}}\n"
	plan := func(document string) string {
		code, out, errs := call(document, "plan", "-f", "-", "--geometry", "Qwen3-30B-A3B", "--lines", "1")
		require.Zero(t, code, errs)
		return out
	}
	expert := plan(strings.Replace(auto, "mode: Auto", "mode: ExpertParallel", 1))
	tensor := plan(strings.Replace(auto, "mode: Auto", "mode: TensorParallel", 1) + "status: {ranks: 4, mode: ExpertParallel}\n")
	require.Equal(t, expert, plan(auto), "a world that is not there starts in mode ExpertParallel")
	require.Equal(t, tensor, plan(auto+"status: {ranks: 4, mode: ExpertParallel, policy: {mode: TensorParallel}}\n"))
	require.NotEqual(t, expert, tensor)
}

// A MoEDeployment with its status, as kubectl prints it, describes both worlds.
func TestPlan_WhenStatusDescribesActiveWorld(t *testing.T) {
	text := `{"apiVersion":"serving.tangram.dev/v1alpha2","kind":"MoEDeployment","metadata":{"name":"d"},
		"spec":{"replicas":1,"ranksPerPod":4,"parallelism":{"mode":"TensorParallel"}},"status":{"ranks":2,"mode":"ExpertParallel","replicas":2,"readyReplicas":2,"epoch":3}}`
	code, out, errs := call(text, "plan", "--geometry", "Mixtral-8x7B", "-f", "-")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Mixtral-8x7B: ExpertParallel on 2 ranks -> TensorParallel on 4 ranks")
	code, out, errs = call(text, "plan", "--geometry", "Mixtral-8x7B", "-f", "-", "--ranks", "8", "--mode", "ExpertParallel", "--from-ranks", "0")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Mixtral-8x7B: no layout -> ExpertParallel on 8 ranks")
}
