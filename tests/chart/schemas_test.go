package chart_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
	"tangram.dev/tests/internal/apiserver"
)

// object is a JSON object.
type object = map[string]any

// schemaFile is the template by which kubeconform finds a kind's schema.
const schemaFile = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"

// writeSchemas writes the schema of every built-in kind and of ours to a separate file. They are strict: an unknown
// field is an error. The source is the OpenAPI document of the Kubernetes that we build.
func writeSchemas(t *testing.T, folder string) {
	t.Helper()
	var document struct{ Definitions map[string]object }
	text, err := os.ReadFile(filepath.Join(kubernetesModule(t), "api", "openapi-spec", "swagger.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &document))
	// The document declares these two as strings, but they also accept numbers.
	document.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = object{"type": []any{"string", "number"}}
	document.Definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = object{"type": []any{"string", "integer"}}
	for _, definition := range document.Definitions {
		forbidUnknown(definition)
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // options of calls, e.g. DeleteOptions, have several
			continue
		}
		kind := kinds[0].(object)
		needed := object{}
		collect(name, document.Definitions, needed)
		writeSchema(t, folder, kind["group"].(string), kind["version"].(string), kind["kind"].(string),
			object{"$ref": "#/definitions/" + name, "definitions": needed})
	}
	for _, crd := range crds(t) {
		for _, version := range crd.Spec.Versions {
			text, err := json.Marshal(version.Schema.OpenAPIV3Schema)
			require.NoError(t, err)
			schema := object{}
			require.NoError(t, json.Unmarshal(text, &schema))
			forbidUnknown(schema)
			writeSchema(t, folder, crd.Spec.Group, version.Name, crd.Spec.Names.Kind, schema)
		}
	}
}

func writeSchema(t *testing.T, folder, group, version, kind string, schema object) {
	t.Helper()
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	if group == "" { // kubeconform uses the part before the slash of apiVersion, here the version
		group = version
	}
	name := fmt.Sprintf("%s_%s_%s.json", group, version, strings.ToLower(kind))
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
}

// forbidUnknown forbids other fields in every schema with a list of fields.
func forbidUnknown(schema object) {
	if _, lists := schema["properties"]; lists && schema["additionalProperties"] == nil &&
		schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	for key, value := range schema {
		inner, is := value.(object)
		switch {
		case !is:
		case key == "properties":
			for _, property := range inner {
				forbidUnknown(property.(object))
			}
		default:
			forbidUnknown(inner)
		}
	}
}

// collect adds a definition and all its references.
func collect(name string, all map[string]object, into object) {
	if _, done := into[name]; done {
		return
	}
	into[name] = all[name]
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case object:
			if reference, is := value["$ref"].(string); is {
				collect(strings.TrimPrefix(reference, "#/definitions/"), all, into)
			}
			for _, inner := range value {
				walk(inner)
			}
		case []any:
			for _, inner := range value {
				walk(inner)
			}
		}
	}
	walk(all[name])
}

// kubernetesModule is the source folder of build/bin/kube.
func kubernetesModule(t *testing.T) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes@"+kubeVersion)
	command.Dir = filepath.Join(apiserver.Root(), "e2e", "cluster")
	out, err := command.Output()
	require.NoError(t, err, "find the sources of Kubernetes %s: %s", kubeVersion, out)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	return module.Dir
}

// crds returns the chart's CRDs.
func crds(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "crds", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 2, "CRDs of the chart")
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(text, crd))
		all = append(all, crd)
	}
	return all
}
