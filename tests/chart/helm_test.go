package chart_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"tangram.dev/tests/internal/apiserver"
)

// kubeVersion is set explicitly: a helm built from source assumes a far older version.
const kubeVersion = "v1.36.4"

var chart = filepath.Join(apiserver.Root(), "charts", "tangram")

// program runs a program of build/bin; the error has its output.
func program(ctx context.Context, stdin, name string, args ...string) (string, error) {
	path := filepath.Join(apiserver.Root(), "build", "bin", name)
	command := exec.CommandContext(ctx, path, args...)
	command.Dir = apiserver.Root()
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("%s is missing: run tests/tools.sh: %w", path, err)
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// render renders the chart as release "tangram" in namespace "tangram-system", with helm's arguments.
func render(ctx context.Context, args ...string) (string, error) {
	return program(ctx, "", "helm", append([]string{"template", "tangram", chart, "--kube-version", kubeVersion,
		"--namespace", "tangram-system"}, args...)...)
}

// manifest is the chart rendered with a set of values.
type manifest []*unstructured.Unstructured

func rendered(t *testing.T, args ...string) manifest {
	t.Helper()
	text, err := render(t.Context(), args...)
	require.NoError(t, err)
	var objects manifest
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// kinds counts the objects of the manifest by kind.
func (m manifest) kinds() map[string]int {
	counts := map[string]int{}
	for _, object := range m {
		counts[object.GetKind()]++
	}
	return counts
}

// find decodes the only object of a kind and name.
func (m manifest) find(t *testing.T, kind, name string, into any) {
	t.Helper()
	found := 0
	for _, object := range m {
		if object.GetKind() == kind && object.GetName() == name {
			found++
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into))
		}
	}
	require.Equal(t, 1, found, "objects %s/%s in the rendered chart", kind, name)
}
