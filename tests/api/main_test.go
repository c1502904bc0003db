package api_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
	"tangram.dev/api/v1alpha2"
	"tangram.dev/tests/internal/apiserver"
)

var server *apiserver.Server

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m, &server)) }

// newClient returns a client of the tested server, for our kinds and the built-in ones.
func newClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha2.AddToScheme(scheme))
	c, err := client.New(server.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	return c
}

// newNamespace makes a namespace for one test.
func newNamespace(t *testing.T, c client.Client) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	require.NoError(t, c.Create(t.Context(), namespace))
	return namespace.Name
}

const smallest = `
apiVersion: serving.tangram.dev/v1alpha2
kind: MoEDeployment
metadata:
  name: demo
spec:
  model:
    source:
      persistentVolumeClaim: {claimName: checkpoints}
  engine: {name: reference}
  memory: {weights: 64Mi, kvCache: 16Mi}
`

// smallestIn returns an object in a namespace with the required fields only. It is untyped, so that a test can send
// values that the Go types cannot represent.
func smallestIn(t *testing.T, namespace string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(smallest), &object.Object))
	object.SetNamespace(namespace)
	return object
}

// decode is strict: an unknown field is an error.
func decode(t *testing.T, text string, into any) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), into))
}

// set sets the field at a dotted path, e.g. "spec.tuning.spareBanks"; nil removes it.
func set(t *testing.T, object *unstructured.Unstructured, path string, value any) {
	t.Helper()
	fields := strings.Split(path, ".")
	if value == nil {
		unstructured.RemoveNestedField(object.Object, fields...)
		return
	}
	require.NoError(t, unstructured.SetNestedField(object.Object, value, fields...), path)
}

// kubectl must succeed; it returns kubectl's output.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := server.Kubectl(context.WithoutCancel(t.Context()), "", args...)
	require.NoError(t, err)
	return out
}
