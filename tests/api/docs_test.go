package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
	"tangram.dev/tests/internal/apiserver"
)

// The guide has the message of every CEL rule.
func TestGuideHasEveryCELMessage(t *testing.T) {
	guide := guide(t)
	files, err := filepath.Glob(filepath.Join(apiserver.Root(), "charts", "tangram", "crds", "*.yaml"))
	require.NoError(t, err)
	messages := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(text, crd))
		for _, version := range crd.Spec.Versions {
			collectMessages(version.Schema.OpenAPIV3Schema, messages)
		}
	}
	require.NotEmpty(t, messages)
	for message := range messages {
		require.Contains(t, guide, message)
	}
}

// The guide names every condition, reason and event.
func TestGuideHasEveryReason(t *testing.T) {
	guide := guide(t)
	source := filepath.Join(apiserver.Root(), "api", "v1alpha2", "names.go")
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(node ast.Node) bool {
		spec, is := node.(*ast.ValueSpec)
		if !is || !hasPrefix(spec.Names[0].Name, "Condition", "Reason", "Event") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		require.Contains(t, guide, "`"+value+"`", spec.Names[0].Name)
		found++
		return true
	})
	require.Greater(t, found, 20)
}

func hasPrefix(name string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(apiserver.Root(), "docs", "kubernetes.md"))
	require.NoError(t, err)
	return string(text)
}

func collectMessages(schema *apiextensionsv1.JSONSchemaProps, into map[string]bool) {
	for _, rule := range schema.XValidations {
		into[rule.Message] = true
	}
	for _, property := range schema.Properties {
		collectMessages(&property, into)
	}
	if schema.Items != nil {
		collectMessages(schema.Items.Schema, into)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		collectMessages(schema.AdditionalProperties.Schema, into)
	}
}
