package v1alpha2_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"tangram.dev/api/v1alpha2"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha2.AddToScheme(scheme))
	return scheme
}

// A user's YAML comes back unchanged: the types know every field in it, under its name.
func TestYAMLRoundTrip(t *testing.T) {
	for file, object := range map[string]any{
		"moedeployment.yaml":    &v1alpha2.MoEDeployment{},
		"layouttransition.yaml": &v1alpha2.LayoutTransition{},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", file))
			require.NoError(t, err)
			require.NoError(t, yaml.UnmarshalStrict(text, object))
			back, err := yaml.Marshal(object)
			require.NoError(t, err)
			require.YAMLEq(t, string(text), string(back))
		})
	}
}

// Any object that Go can hold comes back from JSON, and a deep copy shares nothing with it.
func TestFuzzedRoundTrip(t *testing.T) {
	scheme := scheme(t)
	codecs := serializer.NewCodecFactory(scheme)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), codecs)
	kinds := slices.SortedFunc(maps.Keys(scheme.AllKnownTypes()), func(a, b schema.GroupVersionKind) int { return cmp.Compare(a.String(), b.String()) })
	for _, gvk := range kinds { // in one order, so that each is filled with the same in every run
		if gvk.Group != v1alpha2.GroupVersion.Group || !isOurs(gvk.Kind) {
			continue
		}
		t.Run(gvk.Kind, func(t *testing.T) {
			for range 200 {
				object, err := scheme.New(gvk)
				require.NoError(t, err)
				fill.Fill(object)
				object.GetObjectKind().SetGroupVersionKind(gvk)

				copied := object.DeepCopyObject()
				require.True(t, apiequality.Semantic.DeepEqual(object, copied), "the deep copy differs")
				text, err := json.Marshal(object)
				require.NoError(t, err)
				back, err := runtime.Decode(codecs.UniversalDeserializer(), text)
				require.NoError(t, err)
				again, err := json.Marshal(back)
				require.NoError(t, err)
				require.JSONEq(t, string(text), string(again))

				fill.Fill(object) // what happens to one does not happen to its copy
				unchanged, err := json.Marshal(copied)
				require.NoError(t, err)
				require.JSONEq(t, string(text), string(unchanged))
			}
		})
	}
}

func isOurs(kind string) bool {
	switch kind {
	case "MoEDeployment", "MoEDeploymentList", "LayoutTransition", "LayoutTransitionList":
		return true
	}
	return false
}
