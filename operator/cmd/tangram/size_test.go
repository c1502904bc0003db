package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

func sizeOf(flags string) (int, string, string) {
	return call("", append([]string{"size", "--model", "Qwen3-30B-A3B", "--dense-bytes", "3000000000"}, strings.Fields(flags)...)...)
}

// The manifest has only fields of the API, and tangram plan accepts it.
func TestSize_WhenManifestIsUsed(t *testing.T) {
	code, out, errs := sizeOf("--ranks 4 --max-ranks 8 --ranks-per-pod 2 --memory 70Gi --accelerator None")
	require.Zero(t, code, errs)
	d := &api.MoEDeployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(out), d))
	require.Equal(t, []int32{2, 2, 4, 2}, []int32{d.Spec.Replicas, *d.Spec.MinReplicas, *d.Spec.MaxReplicas, d.Spec.RanksPerPod})
	require.EqualValues(t, 70<<30, d.Spec.Memory.Weights.Value()+d.Spec.Memory.KVCache.Value())
	require.EqualValues(t, 96, d.Spec.Tuning.GranuleRows, "8 ranks share an expert of 768 rows")
	require.Contains(t, out, "KV cache\n")
	code, out2, errs := sizeOf("--ranks 4 --memory 70Gi")
	require.Zero(t, code, errs)
	gpu := &api.MoEDeployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(out2), gpu))
	require.True(t, gpu.OnGPU())
	require.EqualValues(t, 10<<20, gpu.Spec.Tuning.HandleSize.Value(), "an expert of 9 MiB")
	code, planned, errs := call(out, "plan", "-f", "-", "--geometry", "Qwen3-30B-A3B")
	require.Zero(t, code, errs)
	require.Contains(t, planned, "no layout -> ExpertParallel on 4 ranks")
}

func TestSize_WhenFlagsAreWrong(t *testing.T) {
	for flags, want := range map[string]string{
		"":                                        `required flag(s) "ranks"`,
		"--ranks 0":                               "--ranks is 0 and --ranks-per-pod is 1; want at least 1 each",
		"--ranks 3 --ranks-per-pod 2":             "3 ranks do not fill a whole number of pods; want a multiple of --ranks-per-pod 2",
		"--ranks 4 --min-ranks 6":                 "--ranks is 4; want a number between --min-ranks 6",
		"--ranks 4 --max-ranks 2":                 "and --max-ranks 2",
		"--ranks 4 --memory much":                 `--memory is "much"; want a positive amount, e.g. 70Gi`,
		"--ranks 4 --memory -1Gi":                 "want a positive amount",
		"--ranks 4 --mode Hybrid":                 `--mode is "Hybrid"; want ExpertParallel, TensorParallel or Both`,
		"--ranks 4 --accelerator TPU":             `--accelerator is "TPU"; want NVIDIA or None`,
		"--ranks 4 --engine abacus":               `--engine is "abacus"; want vllm or reference`,
		"--ranks 2 --memory 20Gi":                 "the weights need 61.0 GB on 2 ranks; use more ranks or more memory",
		"--ranks 1000":                            "1000 ranks cannot share an expert of Qwen3-30B-A3B, which has 768 rows",
		"--ranks 200 --mode ExpertParallel":       "at most 128 ranks",
		"--ranks 4 --dense-bytes 0":               "set --dense-bytes, or set --model to the folder of the checkpoint",
		"--ranks 4 --dense-bytes 0 --model /none": "--model: no config.json at that path",
	} {
		code, out, errs := sizeOf(flags)
		require.Equal(t, 2, code, flags)
		require.Empty(t, out)
		require.Contains(t, errs, want, flags)
	}
}

func TestObjectName(t *testing.T) {
	for model, want := range map[string]string{"Qwen3-30B-A3B": "qwen3-30b-a3b", "30B": "model-30b", "---": "model", strings.Repeat("Ab.", 20): strings.Repeat("ab-", 13) + "a"} {
		require.Equal(t, want, objectName("", model))
	}
}
