package api_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
	"tangram.dev/api/v1alpha2"
	"tangram.dev/tests/internal/apiserver"
)

// exampleState is the beginning of an example's first line, which states what does not work yet, or where it was
// tested.
var exampleState = regexp.MustCompile(`^# (Does not serve yet: |Tested on )\S`)

// examples returns the manifests in the folder examples by their paths.
func examples(t *testing.T) map[string]string {
	t.Helper()
	folder := filepath.Join(apiserver.Root(), "examples")
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" && filepath.Ext(path) != ".yml" {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // of the repository
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	}))
	require.NotEmpty(t, texts)
	return texts
}

// documents splits a YAML text, without documents that have only comments.
func documents(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &object.Object))
		if len(object.Object) == 0 {
			continue
		}
		if object.GetKind() == "MoEDeployment" {
			decode(t, document, &v1alpha2.MoEDeployment{})
		}
		out = append(out, object)
	}
	return out
}

// apply applies a text as `kubectl apply --server-side` does; unknown fields are errors.
func apply(t *testing.T, namespace, text string) (string, error) {
	t.Helper()
	return server.Kubectl(t.Context(), text, "apply", "--server-side", "--validate=strict", "-n", namespace, "-f", "-")
}

// The API server accepts each example, the README lists it, and its first line states how far it works. The examples of
// a folder share a namespace.
func TestExamples_WhenApplied(t *testing.T) {
	c := newClient(t)
	readme, err := os.ReadFile(filepath.Join(apiserver.Root(), "examples", "README.md"))
	require.NoError(t, err)
	namespaces, kinds := map[string]string{}, map[string]int{}
	for name, text := range examples(t) {
		folder, _, inFolder := strings.Cut(name, "/")
		require.True(t, inFolder, "%s must be in a folder of examples/", name)
		if namespaces[folder] == "" {
			namespaces[folder] = newNamespace(t, c)
		}
		t.Run(name, func(t *testing.T) {
			require.Regexp(t, exampleState, text, "the first line must say what works")
			require.Contains(t, string(readme), "]("+name+")", "examples/README.md has no link to it")
			objects := documents(t, text)
			require.NotEmpty(t, objects)
			out, err := apply(t, namespaces[folder], text)
			require.NoError(t, err)
			for _, object := range objects {
				require.Empty(t, object.GetNamespace(), "users choose the namespace")
				require.Contains(t, out, "/"+object.GetName()+" serverside-applied")
				kinds[object.GetKind()]++
			}
		})
	}
	require.GreaterOrEqual(t, kinds["MoEDeployment"], 8)
	for _, kind := range []string{"PersistentVolumeClaim", "Job", "HorizontalPodAutoscaler"} {
		require.Positive(t, kinds[kind], kind)
	}
}

// The check of the examples detects misspelt fields, of our kinds and of the built-in ones.
func TestExamples_WhenFieldIsUnknown(t *testing.T) {
	namespace := newNamespace(t, newClient(t))
	texts := examples(t)
	for name, typo := range map[string]struct{ field, wrong string }{
		"cpu-demo/moedeployment.yaml": {"replicas", "replica"},
		"cpu-demo/claim.yaml":         {"accessModes", "accessMode"},
		"cpu-demo/checkpoint.yaml":    {"backoffLimit", "backoffLimits"},
		"autoscaling/hpa.yaml":        {"behavior", "behaviour"},
	} {
		field := "\n  " + typo.field + ":"
		require.Equal(t, 1, strings.Count(texts[name], field), "%s in %s", typo.field, name)
		_, err := apply(t, namespace, strings.Replace(texts[name], field, "\n  "+typo.wrong+":", 1))
		require.ErrorContains(t, err, typo.wrong, name)
	}
}

// tensor is an entry of a safetensors header.
type tensor struct {
	Type    string    `json:"dtype"`
	Shape   []int64   `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// tensors returns the tensors in a checkpoint's folder, by name, and the size of all data.
func tensors(t *testing.T, folder string) (map[string]tensor, uint64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no checkpoint in %s", folder)
	all, sum := map[string]tensor{}, uint64(0)
	for _, file := range files {
		header, data := readHeader(t, file)
		for name, one := range header {
			require.LessOrEqual(t, one.Offsets[1], data, "%s in %s", name, file)
			all[name] = tensor{Type: one.Type, Shape: one.Shape}
		}
		sum += data
	}
	return all, sum
}

// readHeader returns the header of a safetensors file, and the size of its data.
func readHeader(t *testing.T, file string) (map[string]tensor, uint64) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	require.NoError(t, err)
	var size uint64
	require.NoError(t, binary.Read(f, binary.LittleEndian, &size))
	require.Less(t, size+8, uint64(info.Size()), file)
	text := make([]byte, size)
	_, err = io.ReadFull(f, text)
	require.NoError(t, err)
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &raw), file)
	delete(raw, "__metadata__")
	header := map[string]tensor{}
	for name, message := range raw {
		var one tensor
		require.NoError(t, json.Unmarshal(message, &one), name)
		header[name] = one
	}
	return header, uint64(info.Size()) - 8 - size
}

// The demo's Job writes a checkpoint with the config.json and the tensors of `make model`, but other numbers.
func TestExamples_WhenJobWritesCheckpoint(t *testing.T) {
	model := filepath.Join(apiserver.Root(), "build", "models", "demo")
	want, err := os.ReadFile(filepath.Join(model, "config.json"))
	require.NoError(t, err, "run `make model` first")
	job := &batchv1.Job{}
	decode(t, examples(t)["cpu-demo/checkpoint.yaml"], job)
	write := job.Spec.Template.Spec.Containers[0]
	require.Equal(t, []string{"python3", "-c"}, write.Command)
	require.Len(t, write.Args, 2)
	require.Equal(t, "/models/demo", write.Args[1])

	out := filepath.Join(t.TempDir(), "demo")
	for range 2 { // a Job may repeat its pod
		printed, err := exec.CommandContext(t.Context(), "python3", "-c", write.Args[0], out).CombinedOutput()
		require.NoError(t, err, string(printed))
	}
	got, err := os.ReadFile(filepath.Join(out, "config.json"))
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
	wantTensors, wantBytes := tensors(t, model)
	gotTensors, gotBytes := tensors(t, out)
	require.Equal(t, wantTensors, gotTensors)
	require.Equal(t, wantBytes, gotBytes)
}
