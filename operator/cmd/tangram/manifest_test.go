package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/geometry"
)

const (
	claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\nspec: {accessModes: [ReadOnlyMany]}\n"
	head  = "apiVersion: serving.tangram.dev/v1alpha2\nkind: MoEDeployment\n"
	six   = head + "metadata: {name: six, namespace: a}\nspec: {replicas: 6}\n"
	eight = head + "metadata: {name: eight, namespace: a}\nspec: {replicas: 8, parallelism: {mode: TensorParallel}, tuning: {granuleRows: 96}}\n"
)

// list makes a List of objects, as kubectl get -o yaml prints it.
func list(objects ...string) string {
	out := "apiVersion: v1\nkind: List\nitems:\n"
	for _, o := range objects {
		out += "- " + strings.ReplaceAll(strings.TrimSuffix(o, "\n"), "\n", "\n  ") + "\n"
	}
	return out + "metadata: {resourceVersion: \"\"}\n"
}

func planOf(in string, flags ...string) (int, string, string) {
	return call(in, append([]string{"plan", "-f", "-", "--geometry", "Qwen3-30B-A3B", "--lines", "1"}, flags...)...)
}

// The only MoEDeployment of a file is planned, whatever other objects the file has.
func TestPlan_WhenFileHasOtherObjects(t *testing.T) {
	_, want, _ := planOf(six)
	require.Contains(t, want, "no layout -> ExpertParallel on 6 ranks")
	for name, text := range map[string]string{
		"a claim before":             claim + "---\n" + six,
		"a claim behind":             six + "---\n" + claim,
		"comments and empty ones":    "# a comment\n---\n---\nnull\n---\n" + six + "---\n# the end\n",
		"a list":                     list(six),
		"a list with others":         list(claim, six),
		"a list in a list":           list(claim, list(six)),
		"a list of its own":          strings.Replace(strings.Replace(list(six), "kind: List", "kind: MoEDeploymentList", 1), "apiVersion: v1", "apiVersion: serving.tangram.dev/v1alpha2", 1),
		"a document of another kind": "kind: Pod\n---\n" + six,
		"another version":            strings.ReplaceAll(eight, "v1alpha2", "v9") + "---\n" + six,
		"JSON":                       `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "serving.tangram.dev/v1alpha2", "kind": "MoEDeployment", "spec": {"replicas": 6}}]}`,
	} {
		code, out, errs := planOf(text)
		require.Zero(t, code, "%s: %s", name, errs)
		require.Equal(t, want, out, name)
	}
	for _, flag := range []string{"six", "a/six"} {
		code, out, errs := planOf(list(eight, six), "--name", flag)
		require.Zero(t, code, errs)
		require.Equal(t, want, out)
	}
}

// An error in a file is one line: the file, the line, the actual and the expected value, without wording of libraries.
func TestPlan_WhenFileIsWrong(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{six + "---\n" + eight, "-: found 2 MoEDeployments: a/six (line 1), a/eight (line 6); choose one with --name NAME or --name NAMESPACE/NAME"},
		{list(six, eight), "-: found 2 MoEDeployments: a/six (line 4), a/eight (line 8); choose one"},
		{claim + "---\n" + claim + "---\nkind: Pod\n", "-: found PersistentVolumeClaim of v1, Pod without an apiVersion; want a MoEDeployment of serving.tangram.dev/v1alpha2"},
		{list(claim), "-: found PersistentVolumeClaim of v1; want a MoEDeployment"},
		{strings.ReplaceAll(six, "v1alpha2", "v9"), "-: found MoEDeployment of serving.tangram.dev/v9; want a MoEDeployment of serving.tangram.dev/v1alpha2"},
		{"replicas: 2\n", "-: found an object without a kind; want"},
		{"", "-: found no object; want"},
		{"text\n", `-: line 1: found the string "text"; want an object with apiVersion and kind`},
		{"- 1\n", "-: line 1: found a list; want an object"},
		{"kind: List\nitems: 5\n", "-: line 2: items of List: found the number 5; want a list of objects"},
		{six + "---\nkind: [\n", "-: line 6: invalid YAML: "},
		{"kind: List\nitems:\n- 7\n", "-: line 3: found the number 7; want an object"},
		{six + "---\n\tkind: x\n", "-: line 6: invalid YAML: "},
		{head + "spec:\n  replicas: many\n", `-: line 4: spec.replicas: found the string "many"; want a whole number`},
		{head + "spec:\n  replicas: 1.5\n", "-: line 4: spec.replicas: found the number 1.5; want a whole number"},
		{head + "spec:\n  model:\n    name: 5\n", "-: line 5: spec.model.name: found the number 5; want a string"},
		{head + "spec: []\n", "-: line 3: spec: found a list; want an object"},
		{head + "spec:\n  memory:\n    weights: 5 Gigs\n", `-: line 5: spec.memory.weights: found the string "5 Gigs"; want an amount, e.g. 24Gi`},
		{head + "spec:\n  replica: 3\n", `-: line 4: unknown field "spec.replica"`},
		{head + "spec:\n  parallelism:\n    layers:\n    - first: 3\n", `-: line 6: unknown field "spec.parallelism.layers[0].first"`},
		{head + "spec:\n  replicas: 3\n  suspend: true\n  replicas: 4\n", "-: line 6: duplicate key replicas, first used in line 4"},
		{head + "spec:\n  ranksPerPod: -1\n", "-: line 4: spec.ranksPerPod is -1; want at least 1"},
	} {
		code, out, errs := planOf(c.text)
		require.Equal(t, 2, code, c.text)
		require.Empty(t, out)
		require.Contains(t, errs, c.want, c.text)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		for _, word := range []string{"unmarshal", "json:", "yaml:", "Go ", "struct", "regular expression"} {
			require.NotContains(t, errs, word)
		}
	}
	_, _, errs := planOf(list(eight, six), "--name", "b/six")
	require.Contains(t, errs, `-: no MoEDeployment is named "b/six"; found a/eight (line 4), a/six (line 8)`)
	_, _, errs = planOf(list(eight, strings.ReplaceAll(six, "namespace: a", "namespace: b"), six), "--name", "six")
	require.Contains(t, errs, "found 2 MoEDeployments")
}

// In mode Auto the command prints the mode that it plans for and its source.
func TestPlan_WhenModeIsAuto(t *testing.T) {
	code, out, errs := call("", "plan", "-f", "../../../examples/autoscaling/slo.yaml", "--geometry", "Qwen3-30B-A3B", "--lines", "1")
	require.Zero(t, code, errs)
	require.Contains(t, out, "no layout -> ExpertParallel on 4 ranks")
	require.Contains(t, errs, "examples/autoscaling/slo.yaml: mode is Auto: the plan is for ExpertParallel, the mode of a new world; use --mode to plan for another mode")
	auto := head + "spec: {replicas: 6, parallelism: {mode: Auto}}\nstatus: {ranks: 4, mode: TensorParallel}\n"
	code, out, errs = planOf(auto)
	require.Zero(t, code, errs)
	require.Contains(t, out, "TensorParallel on 4 ranks -> TensorParallel on 6 ranks")
	require.Contains(t, errs, "the plan is for TensorParallel, the active mode (status.mode)")
	code, out, errs = planOf(auto, "--mode", "ExpertParallel")
	require.Zero(t, code, errs)
	require.Contains(t, out, "TensorParallel on 4 ranks -> ExpertParallel on 6 ranks")
	require.Empty(t, errs)
}

// The command reads every MoEDeployment of the examples, and plans those of public models without their checkpoints.
func TestPlan_WhenFileIsAnExample(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*/*.yaml")
	require.NoError(t, err)
	planned := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.Contains(string(text), "\nkind: MoEDeployment\n") {
			continue
		}
		d, err := plancli.Deployment(file, "", nil)
		require.NoError(t, err)
		if _, err := geometry.PublicNamed(d.Spec.Model.Name); err != nil {
			continue // its geometry is in the checkpoint
		}
		code, out, errs := call("", "plan", "-f", file, "--geometry", d.Spec.Model.Name, "--lines", "1")
		require.Zero(t, code, "%s: %s", file, errs)
		require.Contains(t, out, fmt.Sprintf("no layout -> ExpertParallel on %d ranks", d.Spec.Replicas*d.Spec.RanksPerPod), file)
		planned++
	}
	require.GreaterOrEqual(t, planned, 5)
}

// No flag is ignored silently.
func TestPlan_WhenFlagsHaveNoEffect(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--ranks 2 --from-mode TensorParallel", "--from-mode TensorParallel has no effect without an active layout: set --from-ranks, or -f with a status"},
		{"--ranks 2 --name x", "found --name without --filename: set --filename or remove --name"},
		{"--ranks 2 --price 0.1 --every 2", "found --every, --price without --load: set --load or remove --every, --price"},
		{"--ranks 2 --max-moves 3", "--max-moves without --load"},
		{"--ranks 2 --demand sum --format csv --first-layer 1", "--format, --first-layer, --demand without --load"},
		{"--ranks 2 --old-format json", "--old-format without --old"},
		{"-f - --load -", "--filename -, --load -: only one flag can read standard input"},
	} {
		code, out, errs := call(small, append([]string{"plan", "--geometry", "Mixtral-8x7B"}, strings.Fields(c.flags)...)...)
		require.Equal(t, 2, code, c.flags)
		require.Empty(t, out)
		require.Contains(t, errs, c.want)
	}
	code, _, errs := planOf(fmt.Sprintf("%sstatus: {ranks: 4}\n", six), "--from-mode", "TensorParallel")
	require.Zero(t, code, errs)
	for _, flags := range []string{"--old-format json", "--load - --old -"} {
		code, _, _ = call(small, append([]string{"balance", "--load", "x", "--ranks", "2"}, strings.Fields(flags)...)...)
		require.Equal(t, 2, code)
	}
}
